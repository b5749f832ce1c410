-- Delivery queue of push notifications. `cursor` is the last delivered event, `due` the time of the next attempt or the end
-- of the lease of `runner`, and `pending` the time at which the delivery became due after its last success. `claim` is the
-- number of the last claim, and `dead` the time at which delivery was given up, with a `reason`. The configurations of older
-- versions get the events that follow.
ALTER TABLE push ADD COLUMN cursor INTEGER NOT NULL DEFAULT 0;
ALTER TABLE push ADD COLUMN due INTEGER;
ALTER TABLE push ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE push ADD COLUMN pending INTEGER;
ALTER TABLE push ADD COLUMN runner TEXT;
ALTER TABLE push ADD COLUMN claim INTEGER NOT NULL DEFAULT 0;
ALTER TABLE push ADD COLUMN dead INTEGER;
ALTER TABLE push ADD COLUMN reason TEXT;
UPDATE push SET cursor = ifnull((SELECT seq FROM task WHERE task.id = push.task), 0);
CREATE INDEX push_due ON push(due) WHERE due IS NOT NULL;
CREATE INDEX push_dead ON push(dead) WHERE dead IS NOT NULL;

-- Number of the last claim of a delivery.
ALTER TABLE opening ADD COLUMN claims INTEGER NOT NULL DEFAULT 0;
