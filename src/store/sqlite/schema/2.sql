-- A send that has a key, so that the same one is taken once: whose, what it said (a hash of it), when it was taken, and
-- the event that it became. It goes with its task, or sooner. Keys were on the task before, and only of those that made it.
CREATE TABLE send(
    scope INTEGER NOT NULL,
    key TEXT NOT NULL,
    hash BLOB NOT NULL,
    time INTEGER NOT NULL,
    task INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY(scope, key)
) STRICT, WITHOUT ROWID;
INSERT INTO send SELECT scope, send, x'', time, id, 1 FROM task WHERE send IS NOT NULL;
CREATE INDEX send_task ON send(task);
CREATE INDEX send_time ON send(time);
DROP INDEX task_send;
ALTER TABLE task DROP COLUMN send;

-- What came with the message of the turn that runs, beside it. Whether the log has gone, so that the checkpoint is all
-- that there is: only that of a task that has ended does.
ALTER TABLE task ADD COLUMN asked BLOB;
ALTER TABLE task ADD COLUMN folded INTEGER NOT NULL DEFAULT 0;

-- By state within a context too: a state that few of its tasks are in is found without a look at the others.
DROP INDEX task_context;
CREATE INDEX task_context ON task(scope, context, state, time, key);

-- What sweeps look for (see `ENDED`): each finds what it is to do, and passes nothing that it has done.
DROP INDEX task_ended;
CREATE INDEX task_ended ON task(folded, time) WHERE state IN (3, 4, 5, 7);
CREATE INDEX task_pushed ON task(time) WHERE pushes > 0 AND state IN (3, 4, 5, 7);
CREATE INDEX task_idle ON task(time) WHERE open = 0 AND state IN (6, 8);

-- How many tasks there are in a context that has many. Most have few, whose index is as soon counted, and each number
-- that is kept costs whoever writes.
CREATE TABLE crowd(
    scope INTEGER NOT NULL,
    context TEXT NOT NULL,
    state INTEGER NOT NULL,
    tasks INTEGER NOT NULL,
    PRIMARY KEY(scope, context, state)
) STRICT, WITHOUT ROWID;
INSERT INTO crowd
    SELECT scope, context, state, count(*) FROM task
    WHERE (scope, context) IN (SELECT scope, context FROM task GROUP BY scope, context HAVING count(*) >= 1024)
    GROUP BY scope, context, state;
