-- Whose tasks: so that an owner's name is written once, and not in each index again.
CREATE TABLE scope(
    id INTEGER PRIMARY KEY,
    owner TEXT NOT NULL,
    tenant TEXT NOT NULL,
    UNIQUE(owner, tenant)
) STRICT;

-- Where each task stands. `send` is the key of the send that made it, and `pushes` the number of the newest of its push
-- configurations.
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

-- In the order of lists: of each state, and of each context.
CREATE INDEX task_state ON task(scope, state, time, key);
CREATE INDEX task_context ON task(scope, context, time, key, state);
-- What recovery looks for, what sweeps look for (see `ENDED`), and what has been sent before: each has few of all.
CREATE INDEX task_open ON task(open) WHERE open = 1;
CREATE INDEX task_ended ON task(time) WHERE state IN (3, 4, 5, 7);
CREATE UNIQUE INDEX task_send ON task(scope, send) WHERE send IS NOT NULL;

-- What a commit adds to the log of a task is one row. Its number is that of the task, and in the lower 28 bits that of
-- its first event: a log lies together, in its order, and needs no index.
CREATE TABLE log(
    id INTEGER PRIMARY KEY,
    events BLOB NOT NULL
) STRICT;

-- A task after its event `seq`: what a list shows of it, and behind that its artifacts.
CREATE TABLE checkpoint(
    id INTEGER PRIMARY KEY,
    seq INTEGER NOT NULL,
    task BLOB NOT NULL,
    artifacts BLOB NOT NULL
) STRICT;

-- What its agent keeps for its next turn.
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

-- How many tasks there are, so that nobody has to count them.
CREATE TABLE total(
    scope INTEGER NOT NULL,
    state INTEGER NOT NULL,
    tasks INTEGER NOT NULL,
    PRIMARY KEY(scope, state)
) STRICT, WITHOUT ROWID;

-- One row. What is written from an opening on carries its number, which no earlier one had.
CREATE TABLE opening(
    id INTEGER PRIMARY KEY CHECK (id = 0),
    fence INTEGER NOT NULL
) STRICT;
INSERT INTO opening VALUES(0, 0);

-- Empty: written to by whoever wants to know whether it can be.
CREATE TABLE probe(bytes BLOB NOT NULL) STRICT;
