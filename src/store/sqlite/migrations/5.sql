-- Number of attempts at a turn that a graceful shutdown interrupted. They do not count towards the limit of attempts.
ALTER TABLE task ADD COLUMN drained INTEGER NOT NULL DEFAULT 0;

-- Evictions of older versions left scopes without tasks.
DELETE FROM scope WHERE NOT EXISTS (SELECT 1 FROM task WHERE task.scope = scope.id);
DELETE FROM total WHERE scope NOT IN (SELECT id FROM scope);
DELETE FROM crowd WHERE scope NOT IN (SELECT id FROM scope);
