-- Schema version, and the oldest version of a program that can use it.
CREATE TABLE @meta(
    one bool PRIMARY KEY DEFAULT true CHECK (one),
    version int NOT NULL,
    min_version int NOT NULL
);
INSERT INTO @meta(version, min_version) VALUES(1, 1);

-- Replicas. `seen` is the time of the last renewal of the lease.
CREATE TABLE @replica(
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    name text NOT NULL DEFAULT '',
    version int NOT NULL DEFAULT 0,
    started timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen timestamptz NOT NULL DEFAULT clock_timestamp(),
    turns bigint NOT NULL DEFAULT 0,
    free_turns bigint NOT NULL DEFAULT 0,
    draining bool NOT NULL DEFAULT false,
    dead bool NOT NULL DEFAULT false
);

-- Replica that does a job, and until when.
CREATE TABLE @job(
    name text PRIMARY KEY,
    runner bigint NOT NULL,
    until timestamptz NOT NULL
);

-- Numbers of tasks by state, and of owners with many: in all, and those in a terminal state. One replica counts for all.
CREATE TABLE @usage(
    one bool PRIMARY KEY DEFAULT true CHECK (one),
    states bigint[] NOT NULL,
    owners text[] NOT NULL,
    tasks bigint[] NOT NULL,
    ended bigint[] NOT NULL
);

-- Current status, position and runner of each task. `tid` begins with the time in the id of the task, so that new rows are adjacent,
-- and ends with a hash of owner, tenant and id; `scope` is a hash of owner and tenant. `number` counts in the order of creation.
-- State -1 marks an id that must not be used: an abandoned new task. `taken` is the last delivered message, `mail` the number of the
-- last mail, `read` that of the last one that was read, and `rejected` the later ones that were rejected. `pushes` counts the push
-- configurations that the task has ever had. `folded`: the log was deleted. `asked`: request contexts of the messages that still need
-- a turn. `saved`: state of the agent. `turn`: records of the last turns. `bytes`: size of the log, or of what is left of it.
-- `whole`: task with its log, as encoded by `log_codec.rs`, for a short task that ended with its first commit.
CREATE TABLE @task(
    tid uuid PRIMARY KEY,
    scope uuid NOT NULL,
    number bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    "time" bigint NOT NULL,
    fence bigint NOT NULL,
    seq bigint NOT NULL,
    taken bigint NOT NULL,
    bytes bigint NOT NULL,
    runner bigint,
    mail bigint NOT NULL DEFAULT 0,
    read bigint NOT NULL DEFAULT 0,
    attempt int NOT NULL,
    drained int NOT NULL,
    pushes int NOT NULL DEFAULT 0,
    state smallint NOT NULL,
    open bool NOT NULL,
    cancel bool NOT NULL,
    folded bool NOT NULL DEFAULT false,
    owner text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    context text COLLATE "C" NOT NULL,
    rejected bigint[],
    asked bytea,
    saved bytea,
    turn bytea,
    whole bytea
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- Indexes in list order, by state and by context.
CREATE INDEX task_state ON @task(scope, state, "time", id);
CREATE INDEX task_context ON @task(scope, context, state, "time", id);
CREATE UNIQUE INDEX task_number ON @task(number);
-- Partial indexes with few rows, for claims and sweeps.
CREATE INDEX task_runner ON @task(runner, tid) WHERE runner IS NOT NULL;
CREATE INDEX task_free ON @task("time") WHERE runner IS NULL AND open;
CREATE INDEX task_ended ON @task(folded, "time") WHERE state IN (3, 4, 5, 7);
CREATE INDEX task_pushed ON @task("time") WHERE pushes > 0 AND state IN (3, 4, 5, 7);
CREATE INDEX task_idle ON @task("time") WHERE NOT open AND state IN (6, 8);
CREATE INDEX task_burned ON @task("time") WHERE state = -1;
-- Error ids of failed turns: those of the records whose first byte is 1.
CREATE INDEX task_error ON @task(substr(turn, 2, 16)) WHERE substr(turn, 1, 1) = '\x01';

-- Event log: one row per commit, with its time and the records of the turns that begin or end with it. The key has the last of its
-- events, so that the events after a position are one range.
CREATE TABLE @log(
    tid uuid,
    last bigint,
    first bigint NOT NULL,
    at bigint NOT NULL,
    events bytea NOT NULL,
    turn bytea,
    PRIMARY KEY(tid, last)
);

-- Checkpoint: the task after its event `seq`. Artifacts have their own column, because lists often omit them.
CREATE TABLE @checkpoint(
    tid uuid PRIMARY KEY,
    seq bigint NOT NULL,
    head bytea NOT NULL,
    artifacts bytea NOT NULL
) WITH (fillfactor = 80);

-- Idempotency keys of messages, with a digest of the request, the time, and the event of the message.
CREATE TABLE @send(
    scope uuid,
    key text COLLATE "C",
    hash bytea NOT NULL,
    "time" bigint NOT NULL,
    tid uuid NOT NULL,
    id text NOT NULL,
    seq bigint NOT NULL,
    PRIMARY KEY(scope, key)
);
CREATE INDEX send_task ON @send(tid);
CREATE INDEX send_time ON @send("time");

-- Mail for the runner of a task, until it is read. Rejected mail has an error.
CREATE TABLE @inbox(
    tid uuid,
    n bigint,
    kind smallint NOT NULL,
    key text COLLATE "C" NOT NULL,
    hash bytea NOT NULL,
    body bytea NOT NULL,
    error bytea,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY(tid, n)
);
CREATE UNIQUE INDEX inbox_key ON @inbox(tid, key) WHERE error IS NULL;
CREATE INDEX inbox_rejected ON @inbox(at) WHERE error IS NOT NULL;

-- Push configurations, and the delivery queue of their notifications. `extra` has the members that `config` lacks. `cursor` is the last
-- delivered event, `due` the time of the next attempt or the end of the lease of `runner`, and `pending` the time at which the delivery
-- became due after its last success. `claim` is the number of the last claim and `last` its last event, and `dead` the time at which
-- delivery was given up, with a `reason`. The last attempt: its time, its HTTP status and its error.
CREATE TABLE @push(
    tid uuid,
    id text COLLATE "C",
    number bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    scope uuid NOT NULL,
    owner text COLLATE "C" NOT NULL,
    version text NOT NULL,
    config bytea NOT NULL,
    extra bytea NOT NULL,
    cursor bigint NOT NULL,
    last bigint,
    due bigint,
    attempts int NOT NULL DEFAULT 0,
    pending bigint,
    runner text,
    claim bigint NOT NULL DEFAULT 0,
    dead bigint,
    reason text,
    tried bigint,
    status int,
    error text,
    PRIMARY KEY(tid, id)
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX push_number ON @push(number);
CREATE INDEX push_owner ON @push(owner);
CREATE INDEX push_due ON @push(due) WHERE due IS NOT NULL;
CREATE INDEX push_dead ON @push(dead) WHERE dead IS NOT NULL;
CREATE SEQUENCE @push_claim;
