-- Owners within tenants. Other tables refer to a scope by its id, which keeps their indexes small.
CREATE TABLE scope(
    id INTEGER PRIMARY KEY,
    owner TEXT NOT NULL,
    tenant TEXT NOT NULL,
    UNIQUE(owner, tenant)
) STRICT;

-- Current status and position of each task. `send` is the idempotency key of the message that created it, `pushes` the
-- number of its newest push configuration, `open` marks an unfinished turn, and `taken` is the last delivered message.
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
    pushes INTEGER NOT NULL,
    send TEXT,
    UNIQUE(scope, key)
) STRICT;

-- Indexes in list order: by state, and by context.
CREATE INDEX task_state ON task(scope, state, time, key);
CREATE INDEX task_context ON task(scope, context, time, key, state);
-- Partial indexes with few rows, for recovery, retention sweeps (see `TERMINAL`) and deduplication.
CREATE INDEX task_open ON task(open) WHERE open = 1;
CREATE INDEX task_ended ON task(time) WHERE state IN (3, 4, 5, 7);
CREATE UNIQUE INDEX task_send ON task(scope, send) WHERE send IS NOT NULL;

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

CREATE TABLE push(
    task INTEGER NOT NULL,
    number INTEGER NOT NULL,
    id TEXT NOT NULL,
    version TEXT NOT NULL,
    config BLOB NOT NULL,
    beside BLOB NOT NULL,
    PRIMARY KEY(task, number)
) STRICT, WITHOUT ROWID;

-- Stored task counts.
CREATE TABLE total(
    scope INTEGER NOT NULL,
    state INTEGER NOT NULL,
    tasks INTEGER NOT NULL,
    PRIMARY KEY(scope, state)
) STRICT, WITHOUT ROWID;

-- One row with the fencing token, which is raised whenever the database is opened.
CREATE TABLE opening(
    id INTEGER PRIMARY KEY CHECK (id = 0),
    fence INTEGER NOT NULL
) STRICT;
INSERT INTO opening VALUES(0, 0);

-- Empty. Target of trial writes.
CREATE TABLE probe(bytes BLOB NOT NULL) STRICT;
