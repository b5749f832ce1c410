-- A task that ended with its first commit, and what its log was, as `settled.rs` writes both: then there is nothing of it
-- in the tables of logs and checkpoints.
ALTER TABLE task ADD COLUMN whole BLOB;
