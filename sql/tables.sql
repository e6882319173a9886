-- The state of queen_mq. Users may read it; only the extension writes it.
--
-- Names of queues, consumer groups and partitions are data, never identifiers. They are compared
-- byte by byte (COLLATE "C"). Transaction ids are stored as bigint: the cluster's xid8 plus the
-- offset of queen_mq.identity. So stored ids keep growing, even if a dump is restored into a cluster
-- whose own ids are lower.

-- The library handles names and payloads as UTF-8. A database of another encoding would store them
-- as other texts, without an error.
DO $$
BEGIN
    IF pg_catalog.getdatabaseencoding() OPERATOR(pg_catalog.<>) 'UTF8' THEN
        RAISE EXCEPTION 'queen_mq needs a database whose encoding is UTF8'
            USING ERRCODE = 'feature_not_supported',
                  DETAIL = pg_catalog.format('The encoding of this database is %s.',
                                             pg_catalog.getdatabaseencoding()),
                  HINT = 'Create a database with ENCODING ''UTF8''.';
    END IF;
END
$$;

CREATE SCHEMA queen_mq;
COMMENT ON SCHEMA queen_mq IS 'State of the extension queen_mq. You may read it; only the extension may write it.';

-- One row: a number that CREATE EXTENSION draws in this database. The table is not registered for
-- pg_dump (below), so a dump never carries the number. The database that a dump is restored into
-- keeps its own. A copy of the files has the number of its original: a standby, a backup restored to
-- a point in time, a clone, a database made from a template, a cluster that went through pg_upgrade.
-- In such a copy, stored transaction ids keep their meaning.
CREATE TABLE queen_mq.installation (
    id bigint PRIMARY KEY
);
COMMENT ON TABLE queen_mq.installation IS 'The number of this installation, which a dump does not carry';
INSERT INTO queen_mq.installation
    SELECT pg_catalog.hashtextextended(pg_catalog.gen_random_uuid()::pg_catalog.text, 0);

-- What is added to transaction ids before they are stored, and by which installation. A dump
-- carries its row into this table of the database that it is restored into. A row of another
-- installation shows that a dump was restored. The next call then raises the offset, so that new ids
-- exceed all stored ones, and replaces the rows with its own (src/broker/restore.rs). A call also
-- does so if stored ids exceed the next one for another reason: for instance, a dump of a clone that
-- ran ahead was restored in its original. The table has no key, because the rows of a dump must not
-- collide with those that are here.
CREATE TABLE queen_mq.identity (
    installation bigint NOT NULL,
    -- Stored transaction id = the cluster's own id + this offset.
    xid_offset bigint NOT NULL,
    -- Leases given before this moment came with a dump. They count as expired.
    restored_at timestamptz
);
-- Without a key, a publication for all tables would forbid changes of the table.
ALTER TABLE queen_mq.identity REPLICA IDENTITY FULL;
COMMENT ON TABLE queen_mq.identity IS 'The offset that was added to stored transaction ids, and the installation that added it';
INSERT INTO queen_mq.identity SELECT id, 0, NULL FROM queen_mq.installation;

CREATE TABLE queen_mq.queue (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    created_at timestamptz NOT NULL,
    -- Copied from queen_mq.identity, so that a push or a pop need not read that table.
    installation bigint NOT NULL,
    xid_offset bigint NOT NULL,
    restored_at timestamptz,
    -- The options. NULL means the default.
    lease_time interval,
    retry_limit int,
    retry_delay interval,
    retry_backoff float8,
    retry_delay_max interval,
    on_exhausted text,
    dedup_window interval,
    max_deliveries int,
    delay interval,
    retention interval,
    completed_retention interval,
    max_depth bigint,
    ordering text,
    delivery text,
    notify boolean,
    -- Whether pops of the queue find nothing. No option: queen_pause sets it.
    paused boolean NOT NULL DEFAULT false
);
COMMENT ON TABLE queen_mq.queue IS 'Queues and the options set for them (NULL: the default)';

-- The log: a row is a segment. One push writes one segment for each partition it names (more if it is
-- large). No statement updates the messages of a segment. A segment of several messages fits into a
-- page, uncompressed (toast_tuple_target). A larger segment holds one large message, compressed and
-- stored out of line as any large value. The push draws the segment id after its transaction has
-- got its xid. So if a segment has a smaller id than a committed segment, its transaction had its
-- xid already when the id of the committed segment was drawn.
CREATE TABLE queen_mq.segment (
    queue_id bigint NOT NULL,
    id bigint NOT NULL,
    xid bigint NOT NULL,
    created_at timestamptz NOT NULL,
    n smallint NOT NULL,
    partition text COLLATE "C" NOT NULL,
    payloads jsonb[] NOT NULL,
    transaction_ids text[],
    headers jsonb[],
    -- A replayed dead letter is for this group alone. NULL: for all groups. If the group gets a new
    -- id, by a seek or a change of ordering, this is updated (hand_over in src/store/replay.rs). No
    -- other column ever is.
    only_group bigint
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05,
        toast_tuple_target = 8160);
-- Without a key, a publication for all tables would forbid deletions from the table.
ALTER TABLE queen_mq.segment REPLICA IDENTITY FULL;
COMMENT ON TABLE queen_mq.segment IS 'The log of messages, in segments: one row for each push and partition (more for a large push). Its messages are never updated.';
-- For reading one partition in order.
CREATE INDEX segment_in_order ON queen_mq.segment (queue_id, partition, id) INCLUDE (n);
-- For finding new segments of a queue, and those of a transaction that committed late. With n,
-- messages are counted without reading the table.
CREATE INDEX segment_news ON queen_mq.segment (queue_id, xid, partition, id) INCLUDE (n);
-- A message's id is segment id * 28 + index. It stays below 2^53 (MessageId in crates/engine).
CREATE SEQUENCE queen_mq.segment_id AS bigint MAXVALUE 321685687669320 CACHE 1;

-- The transaction_ids that were pushed within the dedup_window of their queue. A push looks here for
-- duplicates.
CREATE TABLE queen_mq.admission (
    queue_id bigint NOT NULL,
    partition text COLLATE "C" NOT NULL,
    transaction_id text COLLATE "C" NOT NULL,
    -- NULL: the message was pushed with a delay, and is not in the log yet.
    message_id bigint,
    admitted_at timestamptz NOT NULL,
    CONSTRAINT admission_once PRIMARY KEY (queue_id, partition, transaction_id)
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.05);
COMMENT ON TABLE queen_mq.admission IS 'transaction_ids, remembered for the dedup_window of their queue';

-- Consumer groups. They name their queue instead of its id, because a group may be registered before
-- its queue exists.
CREATE TABLE queen_mq.consumer_group (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text COLLATE "C" NOT NULL,
    -- The empty name is queue mode.
    name text COLLATE "C" NOT NULL,
    registered_at timestamptz NOT NULL,
    -- Where cursors begin, in partitions that existed at the registration (Start in crates/engine).
    start bytea NOT NULL,
    -- initial: messages that were in the queue at the registration and are for the group. baseline:
    -- messages that have arrived in the queue and are not for the group, or are gone; NULL until
    -- they are counted.
    initial bigint NOT NULL,
    baseline bigint,
    -- Options that the group has of its own. NULL: that of the queue.
    ordering text,
    lease_time interval,
    retry_limit int,
    retry_delay interval,
    retry_backoff float8,
    retry_delay_max interval,
    max_deliveries int,
    on_exhausted text,
    -- Whether pops of the group find nothing.
    paused boolean NOT NULL DEFAULT false,
    CONSTRAINT consumer_group_once UNIQUE (queue, name)
);
COMMENT ON TABLE queen_mq.consumer_group IS 'Consumer groups, and where each began to read. The empty name is queue mode.';

-- One row for each (group, partition) that has been read: its id, and the row that transactions lock
-- before they write the cursor's next state to queen_mq.progress. Never updated.
CREATE TABLE queen_mq.cursor (
    id bigint GENERATED ALWAYS AS IDENTITY (MAXVALUE 562949953421311) PRIMARY KEY,
    group_id bigint NOT NULL,
    partition text COLLATE "C" NOT NULL,
    CONSTRAINT cursor_once UNIQUE (group_id, partition)
) WITH (vacuum_truncate = off);
COMMENT ON TABLE queen_mq.cursor IS 'The partitions that each group has read. The row is the lock of a cursor; its state is in queen_mq.progress.';

-- Claims: the messages that groups without order have popped. The first pop of a message inserts its
-- claim. One call alone updates claims: the first call after a restore brings their deadlines
-- forward. Like a cursor, a claim has its states in queen_mq.progress; claims and cursors draw their
-- ids from one sequence. The row is deleted when the message is settled
-- and the cursor of its partition has passed it. If two pops insert a claim of one message at the
-- same time, the later one fails at the primary key. PostgreSQL makes the primary key first, so a
-- failed insert leaves no entry in the other indexes.
CREATE TABLE queen_mq.claim (
    id bigint NOT NULL CONSTRAINT claim_of_id UNIQUE,
    group_id bigint NOT NULL,
    partition text COLLATE "C" NOT NULL,
    message_id bigint NOT NULL,
    taken_at timestamptz NOT NULL,
    -- The first lease and its end. NULL if the message was popped with auto_ack and has no lease.
    lease_id uuid,
    deadline timestamptz,
    CONSTRAINT claim_once PRIMARY KEY (group_id, partition, message_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_insert_threshold = 20000, vacuum_truncate = off);
COMMENT ON TABLE queen_mq.claim IS 'Messages that groups without order have popped. The state of a claim is in queen_mq.progress.';
CREATE INDEX claim_due ON queen_mq.claim (group_id, deadline, id) WHERE deadline IS NOT NULL;

-- The states of cursors and claims. A change appends a row, and the newest revision counts. If changes
-- updated the row in place, a transaction with an old snapshot would keep all dead rows from vacuum,
-- and every look-up would step over them. A look-up of the newest revision meets no dead rows. (The
-- first call after a restore updates due_at, so that leases from before count as expired.)
CREATE TABLE queen_mq.progress (
    cursor_id bigint NOT NULL,
    revision bigint NOT NULL,
    group_id bigint NOT NULL,
    -- When pops must look at the cursor again: at the end of a lease, or when a retry is due. If the
    -- first message of a cursor has come back and can be popped at once, -infinity.
    due_at timestamptz,
    -- The transaction that left messages in the cursor that can be popped, now or at a retry.
    announced_xid bigint,
    -- Cursor in crates/engine.
    state bytea NOT NULL,
    -- If the state ended leases: when, and their receipts (EndedLease in crates/engine). When the
    -- row is deleted within an hour, they move to queen_mq.receipt.
    ended_at timestamptz,
    receipts bytea,
    CONSTRAINT progress_newest PRIMARY KEY (cursor_id, revision)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_insert_threshold = 20000, vacuum_truncate = off);
COMMENT ON TABLE queen_mq.progress IS 'States of cursors and claims. The newest revision of each counts.';
CREATE INDEX progress_due ON queen_mq.progress (group_id, due_at, cursor_id)
    WHERE due_at IS NOT NULL;
CREATE INDEX progress_announced ON queen_mq.progress (group_id, announced_xid, cursor_id)
    WHERE announced_xid IS NOT NULL;

-- How far the pops of each group have looked for new messages. A change appends a row.
CREATE TABLE queen_mq.discovery (
    group_id bigint NOT NULL,
    revision bigint NOT NULL,
    -- Discovery in crates/engine.
    state bytea NOT NULL,
    CONSTRAINT discovery_newest PRIMARY KEY (group_id, revision)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, vacuum_truncate = off,
        -- Every pop reads the newest row, so the state is stored in line while it fits into a page.
        toast_tuple_target = 8160);
COMMENT ON TABLE queen_mq.discovery IS 'How far the pops of each consumer group have looked for new messages. The newest row of each group counts.';
CREATE SEQUENCE queen_mq.discovery_revision AS bigint CACHE 1;

-- How many messages have arrived in a queue. A change appends a row. A lock of the queue
-- (src/store/locks.rs) lets one transaction at a time write.
CREATE TABLE queen_mq.tally (
    queue_id bigint NOT NULL,
    revision bigint NOT NULL,
    -- Tally in crates/engine.
    state bytea NOT NULL,
    CONSTRAINT tally_newest PRIMARY KEY (queue_id, revision)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, vacuum_truncate = off,
        toast_tuple_target = 8160);
COMMENT ON TABLE queen_mq.tally IS 'How many messages have arrived in each queue. The newest row of each queue counts.';

-- At some moment the next transaction id was xid, and segment_id was the last one drawn. So every
-- transaction from xid on has segment ids above segment_id. From these rows follows up to which id
-- the log of a queue is empty (Floor in crates/engine).
CREATE TABLE queen_mq.waterline (
    queue_id bigint NOT NULL,
    xid bigint NOT NULL,
    segment_id bigint NOT NULL,
    CONSTRAINT waterline_once PRIMARY KEY (queue_id, xid)
);
COMMENT ON TABLE queen_mq.waterline IS 'From which transaction on segments have ids above which one. Readers of the log skip by it what is deleted.';

-- Messages that enter the log later: once, or over and over. A message that recurs keeps its row. With
-- each occurrence, the row gets the moment and the transaction_id of the next one.
CREATE TABLE queen_mq.timer (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id bigint NOT NULL,
    -- A push with a delay gets a made-up key, which begins with a control character. No key of a
    -- user has one.
    timer_key text COLLATE "C" NOT NULL,
    partition text COLLATE "C" NOT NULL,
    transaction_id text COLLATE "C" NOT NULL,
    deliver_at timestamptz NOT NULL,
    payload jsonb NOT NULL,
    headers jsonb,
    -- The schedule of a message that recurs, as the user wrote it. NULL: it enters the log once.
    schedule text,
    time_zone text,
    -- If the schedule is an interval, its value. NULL: it is a cron expression.
    every interval,
    -- The moment of the occurrence that has entered the log last.
    last_at timestamptz,
    CONSTRAINT timer_once UNIQUE (queue_id, timer_key)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
COMMENT ON TABLE queen_mq.timer IS 'Messages that enter the log later: timers, recurring messages, and pushes with a delay';
CREATE INDEX timer_due ON queen_mq.timer (queue_id, deliver_at, id);
-- For the status of a message that is not in the log yet.
CREATE INDEX timer_of_transaction ON queen_mq.timer (queue_id, partition, transaction_id, deliver_at);

-- Which queues get what is published on the topics that a pattern matches. A binding names its queue
-- instead of its id, because the queue may not exist yet.
CREATE TABLE queen_mq.binding (
    pattern text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    CONSTRAINT binding_once PRIMARY KEY (pattern, queue)
);
COMMENT ON TABLE queen_mq.binding IS 'Which queues are bound to which topics';

-- Segments that are for one group alone, as segment.only_group says. They do not count as pending for
-- the other groups.
CREATE TABLE queen_mq.replay (
    queue_id bigint NOT NULL,
    segment_id bigint NOT NULL,
    xid bigint NOT NULL,
    partition text COLLATE "C" NOT NULL,
    group_id bigint NOT NULL,
    -- The message that became the dead letter. NULL: it was replayed before this column was there.
    message_id bigint,
    transaction_id text COLLATE "C",
    CONSTRAINT replay_once PRIMARY KEY (queue_id, segment_id)
);
COMMENT ON TABLE queen_mq.replay IS 'Replayed dead letters that are in the log, each for one group alone';
-- For the status of a message.
CREATE INDEX replay_of_message ON queen_mq.replay (queue_id, partition, transaction_id);

-- Leases over several partitions, with the ids of the cursors that they cover, ascending. In a group
-- without order: leases over several messages, with the ids of their claims.
CREATE TABLE queen_mq.lease_set (
    id bigint GENERATED ALWAYS AS IDENTITY (MAXVALUE 562949953421311) PRIMARY KEY,
    lease_id uuid NOT NULL,
    cursor_ids bigint[] NOT NULL,
    -- If the ids are those of claims: the messages, in the order of the ids.
    message_ids bigint[],
    created_at timestamptz NOT NULL,
    -- The revision of each cursor or claim that gave the lease. NULL: the rows of the claims did.
    revisions bigint[]
);
COMMENT ON TABLE queen_mq.lease_set IS 'Leases over several partitions, or over several claims, and what they cover';

-- The receipts of ended leases, from which a repeated or a late ack gets the right answer. They begin
-- in queen_mq.progress, with the state that ended the lease, and come here when it is deleted. A row
-- has those of many states.
CREATE TABLE queen_mq.receipt (
    -- A cursor or a claim. If below zero, a lease set, whose claims are gone.
    cursor_id bigint NOT NULL,
    -- The last revision whose receipts may be here. Of a lease set: the highest id of a claim.
    revision bigint NOT NULL,
    -- When the last of the leases ended.
    ended_at timestamptz NOT NULL,
    -- The rows of the cursor up to this revision have been deleted.
    pruned_to bigint NOT NULL,
    -- EndedLease in crates/engine, one behind the other.
    body bytea NOT NULL,
    -- Of claims, because their rows may be gone when the lease is named again.
    group_id bigint,
    partition text COLLATE "C",
    CONSTRAINT receipt_newest PRIMARY KEY (cursor_id, revision)
) WITH (autovacuum_vacuum_scale_factor = 0.05, vacuum_truncate = off, toast_tuple_target = 8160);
-- For the removal of a group. Its claims may be gone by then, so their receipts name the group.
CREATE INDEX receipt_of_group ON queen_mq.receipt (group_id) WHERE group_id IS NOT NULL;
COMMENT ON TABLE queen_mq.receipt IS 'What ended leases have settled, kept for at least an hour. The newest receipts are in queen_mq.progress.';

CREATE TABLE queen_mq.dead_letter (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text COLLATE "C" NOT NULL,
    -- The empty name is queue mode.
    consumer_group text COLLATE "C" NOT NULL,
    partition text COLLATE "C" NOT NULL,
    message_id bigint NOT NULL,
    transaction_id text NOT NULL,
    payload jsonb NOT NULL,
    headers jsonb,
    error text,
    failures int NOT NULL,
    deliveries int NOT NULL,
    created_at timestamptz NOT NULL,
    failed_at timestamptz NOT NULL
);
COMMENT ON TABLE queen_mq.dead_letter IS 'Messages that a consumer group has given up, with their payload';
CREATE INDEX dead_letter_of_group ON queen_mq.dead_letter (queue, consumer_group, id);
-- For the status of a message.
CREATE INDEX dead_letter_of_message ON queen_mq.dead_letter (queue, partition, transaction_id COLLATE "C");

-- How far the sweep has come in each table that it reads page by page. A sweep locks the row of its
-- task. Another sweep then skips that task.
CREATE TABLE queen_mq.sweep (
    task text COLLATE "C" PRIMARY KEY,
    page bigint NOT NULL
);
COMMENT ON TABLE queen_mq.sweep IS 'How far the sweep has come in each table';
INSERT INTO queen_mq.sweep VALUES
    ('transaction_ids', 0), ('progress', 0), ('receipts', 0), ('lease_sets', 0), ('cursors', 0),
    ('removed_claims', 0);

-- pg_dump saves the rows of an extension's tables, and the state of its sequences, only if they
-- are registered. All are, except queen_mq.installation and queen_mq.sweep. A sweep may begin anew
-- after a restore.
SELECT pg_catalog.pg_extension_config_dump('queen_mq.identity', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.queue', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.queue_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.segment', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.segment_id', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.admission', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.consumer_group', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.consumer_group_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.cursor', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.cursor_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.claim', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.progress', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.discovery', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.discovery_revision', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.tally', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.waterline', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.timer', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.replay', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.timer_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.binding', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.lease_set', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.lease_set_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.receipt', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.dead_letter', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.dead_letter_id_seq', '');
