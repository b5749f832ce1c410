-- Numbers of push configurations per scope, for the limit of an owner. `push.scope` is the scope of the task.
ALTER TABLE push ADD COLUMN scope INTEGER NOT NULL DEFAULT 0;
ALTER TABLE scope ADD COLUMN push_count INTEGER NOT NULL DEFAULT 0;
UPDATE push SET scope = ifnull((SELECT scope FROM task WHERE task.id = push.task), 0);
UPDATE scope SET push_count = (SELECT count(*) FROM push WHERE push.scope = scope.id);
CREATE TRIGGER push_added AFTER INSERT ON push BEGIN
    UPDATE scope SET push_count = push_count + 1 WHERE id = NEW.scope;
END;
CREATE TRIGGER push_deleted AFTER DELETE ON push BEGIN
    UPDATE scope SET push_count = push_count - 1 WHERE id = OLD.scope;
END;

-- Last event of the last claim of a delivery.
ALTER TABLE push ADD COLUMN last INTEGER;
