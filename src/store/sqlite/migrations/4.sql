-- Completed task with its log, as encoded by `log_codec.rs`, for a task that reached a terminal state with its first
-- commit. Such a task has no rows in the tables of logs and checkpoints.
ALTER TABLE task ADD COLUMN whole BLOB;
