-- Time of each commit, in milliseconds since the creation of the task, whose time is in its id; since 1970 for an id without a time.
-- NULL for rows that an older program wrote, and for those of an import without times.
ALTER TABLE log ADD COLUMN at INTEGER;

-- Records of the turns that begin or end with a commit, as `store/turn_record.rs` encodes them. Those of a commit that ends its
-- task are in the row of the task, and once the log is deleted the newest of the others, too. NULL for a task that ended with its
-- first commit, unless there is something to tell.
ALTER TABLE log ADD COLUMN turn BLOB;
ALTER TABLE task ADD COLUMN turn BLOB;

-- Error ids of failed turns: those of the records whose first byte is 1.
CREATE INDEX task_error ON task(substr(turn, 2, 16)) WHERE substr(turn, 1, 1) = x'01';

-- Last attempt of a delivery: its time, the HTTP status, and the error of one that failed. NULL before the first attempt; the status
-- also without a response, the error also after a success.
ALTER TABLE push ADD COLUMN tried INTEGER;
ALTER TABLE push ADD COLUMN status INTEGER;
ALTER TABLE push ADD COLUMN error TEXT;
