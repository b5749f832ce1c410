-- Terminal states by comparisons: for an `IN` list, SQLite builds a temporary table on each insert.
DROP INDEX task_ended;
CREATE INDEX task_ended ON task(folded, time) WHERE state >= 3 AND state <= 7 AND state <> 6;
DROP INDEX task_pushed;
CREATE INDEX task_pushed ON task(time) WHERE pushes > 0 AND state >= 3 AND state <= 7 AND state <> 6;
