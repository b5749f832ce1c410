-- How many of the attempts at a turn were cut by a graceful stop of the server: they do not count towards the limit.
ALTER TABLE task ADD COLUMN drained INTEGER NOT NULL DEFAULT 0;

-- Owners without tasks: evictions left them behind.
DELETE FROM scope WHERE NOT EXISTS (SELECT 1 FROM task WHERE task.scope = scope.id);
DELETE FROM total WHERE scope NOT IN (SELECT id FROM scope);
DELETE FROM crowd WHERE scope NOT IN (SELECT id FROM scope);
