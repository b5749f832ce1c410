-- Owners within tenants. Other tables refer to a scope by its id, which keeps their indexes small. `push_count` is the number
-- of the scope's push configurations, for the limit of an owner.
CREATE TABLE scope(
    id INTEGER PRIMARY KEY,
    owner TEXT NOT NULL,
    tenant TEXT NOT NULL,
    push_count INTEGER NOT NULL DEFAULT 0,
    UNIQUE(owner, tenant)
) STRICT;

-- Current status and position of each task. `pushes` is the number of its newest push configuration, `open` marks an
-- unfinished turn, and `taken` is the last delivered message. `drained` is the number of attempts at a turn that a graceful
-- shutdown interrupted, which do not count towards the limit of attempts. `folded`: the log was deleted, and only the
-- checkpoint is left; only for tasks in a terminal state. `asked`: request contexts of the messages that still need a turn.
-- `whole`: completed task with its log, as encoded by `log_codec.rs`, for a task that reached a terminal state with its first
-- commit. Such a task has no rows in the tables of logs and checkpoints.
CREATE TABLE task(
    id INTEGER PRIMARY KEY,
    scope INTEGER NOT NULL,
    key TEXT NOT NULL,
    context TEXT NOT NULL,
    state INTEGER NOT NULL,
    time INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    open INTEGER NOT NULL,
    taken INTEGER NOT NULL,
    cancel INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    drained INTEGER NOT NULL DEFAULT 0,
    pushes INTEGER NOT NULL,
    folded INTEGER NOT NULL DEFAULT 0,
    asked BLOB,
    whole BLOB,
    UNIQUE(scope, key)
) STRICT;

-- Indexes in list order: by state, and by context. Both include the state, so that a state with few tasks is found quickly.
CREATE INDEX task_state ON task(scope, state, time, key);
CREATE INDEX task_context ON task(scope, context, state, time, key);
-- Partial indexes with few rows, for recovery and retention sweeps (see `TERMINAL`): each contains only tasks that are not
-- processed yet. Terminal states by comparisons: for an `IN` list, SQLite builds a temporary table on each insert.
CREATE INDEX task_open ON task(open) WHERE open = 1;
CREATE INDEX task_ended ON task(folded, time) WHERE state >= 3 AND state <= 7 AND state <> 6;
CREATE INDEX task_pushed ON task(time) WHERE pushes > 0 AND state >= 3 AND state <= 7 AND state <> 6;
CREATE INDEX task_idle ON task(time) WHERE open = 0 AND state IN (6, 8);

-- Event log: one row per commit. The id consists of the task's id and, in the lower 28 bits, the sequence number of the
-- first event. The rows of a log are therefore adjacent and in order, without an index.
CREATE TABLE log(
    id INTEGER PRIMARY KEY,
    events BLOB NOT NULL
) STRICT;

-- Checkpoint: the task after its event `seq`. Artifacts have their own column, because lists often omit them.
CREATE TABLE checkpoint(
    id INTEGER PRIMARY KEY,
    seq INTEGER NOT NULL,
    task BLOB NOT NULL,
    artifacts BLOB NOT NULL
) STRICT;

-- State that the agent saves for its next turn.
CREATE TABLE saved(
    id INTEGER PRIMARY KEY,
    bytes BLOB NOT NULL
) STRICT;

-- Idempotency keys of messages, with a digest of the request, the time, and the event of the message.
CREATE TABLE send(
    scope INTEGER NOT NULL,
    key TEXT NOT NULL,
    hash BLOB NOT NULL,
    time INTEGER NOT NULL,
    task INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY(scope, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX send_task ON send(task);
CREATE INDEX send_time ON send(time);

-- Push configurations, and the delivery queue of their notifications. `scope` is the scope of the task, and `beside` has the
-- members that `config` lacks. `cursor` is the last delivered event, `due` the time of the next attempt or the end of the
-- lease of `runner`, and `pending` the time at which the delivery became due after its last success. `claim` is the number of
-- the last claim and `last` its last event, and `dead` the time at which delivery was given up, with a `reason`.
CREATE TABLE push(
    task INTEGER NOT NULL,
    number INTEGER NOT NULL,
    scope INTEGER NOT NULL,
    id TEXT NOT NULL,
    version TEXT NOT NULL,
    config BLOB NOT NULL,
    beside BLOB NOT NULL,
    cursor INTEGER NOT NULL,
    due INTEGER,
    attempts INTEGER NOT NULL DEFAULT 0,
    pending INTEGER,
    runner TEXT,
    claim INTEGER NOT NULL DEFAULT 0,
    last INTEGER,
    dead INTEGER,
    reason TEXT,
    PRIMARY KEY(task, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX push_due ON push(due) WHERE due IS NOT NULL;
CREATE INDEX push_dead ON push(dead) WHERE dead IS NOT NULL;
CREATE TRIGGER push_added AFTER INSERT ON push BEGIN
    UPDATE scope SET push_count = push_count + 1 WHERE id = NEW.scope;
END;
CREATE TRIGGER push_deleted AFTER DELETE ON push BEGIN
    UPDATE scope SET push_count = push_count - 1 WHERE id = OLD.scope;
END;

-- Stored task counts.
CREATE TABLE total(
    scope INTEGER NOT NULL,
    state INTEGER NOT NULL,
    tasks INTEGER NOT NULL,
    PRIMARY KEY(scope, state)
) STRICT, WITHOUT ROWID;

-- Stored task counts of large contexts. Counting the index of a small one is fast, and stored counts slow down commits.
CREATE TABLE crowd(
    scope INTEGER NOT NULL,
    context TEXT NOT NULL,
    state INTEGER NOT NULL,
    tasks INTEGER NOT NULL,
    PRIMARY KEY(scope, context, state)
) STRICT, WITHOUT ROWID;

-- One row with the fencing token, which is raised whenever the database is opened, and the number of the last claim of a
-- delivery.
CREATE TABLE opening(
    id INTEGER PRIMARY KEY CHECK (id = 0),
    fence INTEGER NOT NULL,
    claims INTEGER NOT NULL
) STRICT;
INSERT INTO opening VALUES(0, 0, 0);

-- Empty. Target of trial writes.
CREATE TABLE probe(bytes BLOB NOT NULL) STRICT;
