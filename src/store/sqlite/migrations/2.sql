-- Idempotency keys of messages, with a digest of the request, the time, and the event of the message. Before version 2, only
-- the key of the message that created a task was stored, in the row of the task.
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

-- `asked`: request contexts of the messages that still need a turn. `folded`: the log was deleted, and only the checkpoint
-- is left; only for tasks in a terminal state.
ALTER TABLE task ADD COLUMN asked BLOB;
ALTER TABLE task ADD COLUMN folded INTEGER NOT NULL DEFAULT 0;

-- Includes the state, so that a state with few tasks of a context is found quickly.
DROP INDEX task_context;
CREATE INDEX task_context ON task(scope, context, state, time, key);

-- Indexes of retention sweeps (see `TERMINAL`): each contains only tasks that are not processed yet.
DROP INDEX task_ended;
CREATE INDEX task_ended ON task(folded, time) WHERE state IN (3, 4, 5, 7);
CREATE INDEX task_pushed ON task(time) WHERE pushes > 0 AND state IN (3, 4, 5, 7);
CREATE INDEX task_idle ON task(time) WHERE open = 0 AND state IN (6, 8);

-- Stored task counts of large contexts. Counting the index of a small one is fast, and stored counts slow down commits.
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
