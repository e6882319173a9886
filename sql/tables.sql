-- The state of queen_mq. Users read it, the extension alone writes it.
--
-- Names (queue, consumer group, partition) are data, compared byte by byte (COLLATE "C"), never
-- identifiers. Transaction ids are stored as bigint: the cluster's xid8 plus the offset of
-- queen_mq.identity, so that they keep growing when a dump is restored into a cluster that counts
-- lower.

-- Names and payloads are UTF-8 on their way through the library. A database of another encoding
-- would store them as other texts, without an error.
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
COMMENT ON SCHEMA queen_mq IS 'State of the queen_mq extension: read it, never write it';

-- One row: a number that CREATE EXTENSION draws in this database. The table is not registered for
-- pg_dump (below), so the number never travels with a dump, and the database that a dump is
-- restored into keeps its own. A copy of the files has the number of its original: a standby, a
-- backup restored to a point in time, a clone, a database made from a template, a cluster that went
-- through pg_upgrade. In these, transaction ids go on as they were.
CREATE TABLE queen_mq.installation (
    id bigint PRIMARY KEY
);
COMMENT ON TABLE queen_mq.installation IS 'The number of this installation, which a dump does not carry';
INSERT INTO queen_mq.installation
    SELECT pg_catalog.hashtextextended(pg_catalog.gen_random_uuid()::pg_catalog.text, 0);

-- What is added to transaction ids before they are stored, and by which installation. A dump
-- carries its row into the table of the database that it is restored into. A row of another
-- installation tells that a dump was restored: the next call raises the offset, so that new ids
-- exceed all stored ones, and replaces the rows with its own (src/store/identity.rs). It does so,
-- too, where stored ids exceed the next one, for instance when a dump of a clone that ran ahead is
-- restored in its original. No key: the rows of a dump must never collide with those that are here.
CREATE TABLE queen_mq.identity (
    installation bigint NOT NULL,
    -- Stored transaction id = the cluster's own + this.
    xid_offset bigint NOT NULL,
    -- Leases given before this moment came with a dump and count as expired.
    restored_at timestamptz
);
-- A publication for all tables must not forbid changes of it.
ALTER TABLE queen_mq.identity REPLICA IDENTITY FULL;
COMMENT ON TABLE queen_mq.identity IS 'What was added to the transaction ids that are stored, and by which installation';
INSERT INTO queen_mq.identity SELECT id, 0, NULL FROM queen_mq.installation;

CREATE TABLE queen_mq.queue (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    created_at timestamptz NOT NULL,
    -- What identity has, so that a push or a pop need not look there.
    installation bigint NOT NULL,
    xid_offset bigint NOT NULL,
    restored_at timestamptz,
    -- Options; NULL is the default.
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
    ordering text
);
COMMENT ON TABLE queen_mq.queue IS 'Queues and the options set for them (NULL: the default)';

-- The log. One push writes one row for each partition it names (more if it is large), and no
-- statement updates it. A row of several messages fits into a page, uncompressed
-- (toast_tuple_target). A larger row holds one large message, compressed and cut as any large
-- value. The push draws the id after its transaction has its xid, so a row with a smaller id than a
-- committed one belongs to a transaction that already had its xid then.
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
    -- For this group alone (a replayed dead letter); NULL: for all.
    only_group bigint
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05,
        toast_tuple_target = 8160);
-- It has no primary key, and a publication for all tables is not to forbid its deletions.
ALTER TABLE queen_mq.segment REPLICA IDENTITY FULL;
COMMENT ON TABLE queen_mq.segment IS 'The log of messages: one row for each push and partition, never updated';
-- Reads one partition in order.
CREATE INDEX segment_in_order ON queen_mq.segment (queue_id, partition, id) INCLUDE (n);
-- Tells what is new in a queue, and finds what a late transaction left. n: counted without the heap.
CREATE INDEX segment_news ON queen_mq.segment (queue_id, xid, partition, id) INCLUDE (n);
-- A message's id is segment id * 28 + index, and below 2^53 (engine: MessageId).
CREATE SEQUENCE queen_mq.segment_id AS bigint MAXVALUE 321685687669320 CACHE 1;

-- Admission: each transaction_id within the dedup window of its queue.
CREATE TABLE queen_mq.admission (
    queue_id bigint NOT NULL,
    partition text COLLATE "C" NOT NULL,
    transaction_id text COLLATE "C" NOT NULL,
    message_id bigint NOT NULL,
    admitted_at timestamptz NOT NULL,
    CONSTRAINT admission_once PRIMARY KEY (queue_id, partition, transaction_id)
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.05);
COMMENT ON TABLE queen_mq.admission IS 'transaction_ids remembered for the dedup window of their queue';

-- Consumer groups, by the name of their queue: a group may be registered before its queue exists.
CREATE TABLE queen_mq.consumer_group (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text COLLATE "C" NOT NULL,
    -- '' is queue mode.
    name text COLLATE "C" NOT NULL,
    registered_at timestamptz NOT NULL,
    -- Where cursors of partitions that existed then begin (engine: Start).
    start bytea NOT NULL,
    -- Messages that were there at the start and are for the group; and, once they have been
    -- counted, those that have arrived in the queue and are not for the group, or are gone.
    initial bigint NOT NULL,
    baseline bigint,
    -- NULL: as the queue has it.
    ordering text,
    CONSTRAINT consumer_group_once UNIQUE (queue, name)
);
COMMENT ON TABLE queen_mq.consumer_group IS 'Consumer groups and where each began to read; the empty name is queue mode';

-- The identity and the lock of a (group, partition): never updated.
CREATE TABLE queen_mq.cursor (
    id bigint GENERATED ALWAYS AS IDENTITY (MAXVALUE 562949953421311) PRIMARY KEY,
    group_id bigint NOT NULL,
    partition text COLLATE "C" NOT NULL,
    CONSTRAINT cursor_once UNIQUE (group_id, partition)
) WITH (vacuum_truncate = off);
COMMENT ON TABLE queen_mq.cursor IS 'The (group, partition) pairs that have been read: an identity and a lock';

-- In groups without order, who has taken a message, for good: inserted by the pop that takes it
-- first, never updated. What becomes of it afterwards is in progress, as for a cursor, whose ids the
-- claims share. It goes when the message is settled and the cursor of its partition has passed it.
-- Its first key is the one that two who come at once meet at: the other indexes follow.
CREATE TABLE queen_mq.claim (
    id bigint NOT NULL CONSTRAINT claim_of_id UNIQUE,
    group_id bigint NOT NULL,
    partition text COLLATE "C" NOT NULL,
    message_id bigint NOT NULL,
    taken_at timestamptz NOT NULL,
    -- The first lease and its end; NULL where there is none (auto_ack: settled at once).
    lease_id uuid,
    deadline timestamptz,
    CONSTRAINT claim_once PRIMARY KEY (group_id, partition, message_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_insert_threshold = 20000, vacuum_truncate = off);
COMMENT ON TABLE queen_mq.claim IS 'Messages that a group without order has taken';
CREATE INDEX claim_due ON queen_mq.claim (group_id, deadline, id) WHERE deadline IS NOT NULL;

-- The state of cursors, append-only: the newest revision counts. Updating in place would collapse
-- as soon as somebody holds an old snapshot; the newest end of an index never fills with dead rows.
CREATE TABLE queen_mq.progress (
    cursor_id bigint NOT NULL,
    revision bigint NOT NULL,
    group_id bigint NOT NULL,
    -- When the cursor becomes of interest by itself: the deadline of a lease, or a retry.
    due_at timestamptz,
    -- The transaction that left the cursor ready, or waiting for a retry.
    announced_xid bigint,
    -- engine: Cursor
    state bytea NOT NULL,
    CONSTRAINT progress_newest PRIMARY KEY (cursor_id, revision)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_insert_threshold = 20000, vacuum_truncate = off);
COMMENT ON TABLE queen_mq.progress IS 'Revisions of cursor states; the newest of each cursor counts';
CREATE INDEX progress_due ON queen_mq.progress (group_id, due_at, cursor_id)
    WHERE due_at IS NOT NULL;
CREATE INDEX progress_announced ON queen_mq.progress (group_id, announced_xid, cursor_id)
    WHERE announced_xid IS NOT NULL;

-- How far groups have looked for work, append-only.
CREATE TABLE queen_mq.discovery (
    group_id bigint NOT NULL,
    revision bigint NOT NULL,
    -- engine: Discovery
    state bytea NOT NULL,
    CONSTRAINT discovery_newest PRIMARY KEY (group_id, revision)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, vacuum_truncate = off,
        -- Every pop reads the newest: in line while it fits into a page.
        toast_tuple_target = 8160);
COMMENT ON TABLE queen_mq.discovery IS 'Where consumer groups have looked for work; the newest row of each counts';
CREATE SEQUENCE queen_mq.discovery_revision AS bigint CACHE 1;

-- How much has arrived in a queue, append-only, written by one transaction at a time.
CREATE TABLE queen_mq.tally (
    queue_id bigint NOT NULL,
    revision bigint NOT NULL,
    -- engine: Tally
    state bytea NOT NULL,
    CONSTRAINT tally_newest PRIMARY KEY (queue_id, revision)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, vacuum_truncate = off,
        toast_tuple_target = 8160);
COMMENT ON TABLE queen_mq.tally IS 'How many messages have arrived in each queue; the newest row of each counts';

-- Messages that enter the log later.
CREATE TABLE queen_mq.timer (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id bigint NOT NULL,
    -- Of a delayed push: made up from its partition and transaction_id, with control characters,
    -- which no key of a user has.
    timer_key text COLLATE "C" NOT NULL,
    partition text COLLATE "C" NOT NULL,
    transaction_id text COLLATE "C" NOT NULL,
    deliver_at timestamptz NOT NULL,
    payload jsonb NOT NULL,
    headers jsonb,
    CONSTRAINT timer_once UNIQUE (queue_id, timer_key)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
COMMENT ON TABLE queen_mq.timer IS 'Messages that enter the log at a later time';
CREATE INDEX timer_due ON queen_mq.timer (queue_id, deliver_at, id);

-- Segments that are for one group alone, so that they do not count as pending for the others.
CREATE TABLE queen_mq.replay (
    queue_id bigint NOT NULL,
    segment_id bigint NOT NULL,
    xid bigint NOT NULL,
    partition text COLLATE "C" NOT NULL,
    group_id bigint NOT NULL,
    CONSTRAINT replay_once PRIMARY KEY (queue_id, segment_id)
);
COMMENT ON TABLE queen_mq.replay IS 'Replayed dead letters in the log, each for one group alone';

-- Leases over several partitions: the cursors they cover, ascending. Or over several messages in a
-- group without order: their claims.
CREATE TABLE queen_mq.lease_set (
    id bigint GENERATED ALWAYS AS IDENTITY (MAXVALUE 562949953421311) PRIMARY KEY,
    lease_id uuid NOT NULL,
    cursor_ids bigint[] NOT NULL,
    -- Of claims: the messages, in the same order.
    message_ids bigint[],
    created_at timestamptz NOT NULL
);
COMMENT ON TABLE queen_mq.lease_set IS 'The cursors of leases that cover several partitions';

-- The trace of ended leases, so that a repeated or a late ack is answered rightly.
CREATE TABLE queen_mq.receipt (
    cursor_id bigint NOT NULL,
    lease_id uuid NOT NULL,
    ended_at timestamptz NOT NULL,
    -- engine: Receipt
    body bytea NOT NULL,
    -- Of a claim, which may be gone by the time it is asked for.
    group_id bigint,
    partition text COLLATE "C",
    CONSTRAINT receipt_once PRIMARY KEY (cursor_id, lease_id)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
-- For the removal of a group: its claims may be gone by then, so their receipts name it.
CREATE INDEX receipt_of_group ON queen_mq.receipt (group_id) WHERE group_id IS NOT NULL;
COMMENT ON TABLE queen_mq.receipt IS 'What ended leases settled, kept for at least an hour';

CREATE TABLE queen_mq.dead_letter (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text COLLATE "C" NOT NULL,
    -- '' is queue mode.
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
COMMENT ON TABLE queen_mq.dead_letter IS 'Messages that a group gave up on, with their payload';
CREATE INDEX dead_letter_of_group ON queen_mq.dead_letter (queue, consumer_group, id);

-- Where the sweep has come to in each table that it passes page by page; its lock keeps others off.
CREATE TABLE queen_mq.sweep (
    task text COLLATE "C" PRIMARY KEY,
    page bigint NOT NULL
);
COMMENT ON TABLE queen_mq.sweep IS 'Where the sweep has come to in each table';
INSERT INTO queen_mq.sweep VALUES
    ('transaction_ids', 0), ('progress', 0), ('receipts', 0), ('lease_sets', 0), ('cursors', 0),
    ('removed_claims', 0);

-- pg_dump saves the rows of an extension's tables, and the state of its sequences, only if they
-- are registered. All are, except queen_mq.installation, and queen_mq.sweep, which begins anew.
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
SELECT pg_catalog.pg_extension_config_dump('queen_mq.timer', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.replay', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.timer_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.lease_set', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.lease_set_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.receipt', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.dead_letter', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.dead_letter_id_seq', '');
