-- From version 0.1.0 to 0.2.0. Both scripts together leave what a fresh installation of 0.2.0 has.

-- A push with a delay is admitted when it is pushed, and has no message id before it enters the log.
ALTER TABLE queen_mq.admission ALTER COLUMN message_id DROP NOT NULL;
-- Before, it was admitted when it entered the log, and dropped if another push of its transaction_id
-- was remembered then. Those that would be dropped at their time are dropped now, and the others are
-- admitted, unless another push is remembered still. The key of such a timer is U+0001, the partition,
-- U+001F and the transaction_id, if there was a dedup_window. Its default is an hour.
DELETE FROM queen_mq.timer t USING queen_mq.admission a, queen_mq.queue q
WHERE pg_catalog.starts_with(t.timer_key, E'\x01') AND pg_catalog.strpos(t.timer_key, E'\x1f') OPERATOR(pg_catalog.>) 0
  AND a.queue_id OPERATOR(pg_catalog.=) t.queue_id AND a.partition OPERATOR(pg_catalog.=) t.partition
  AND a.transaction_id OPERATOR(pg_catalog.=) t.transaction_id
  AND q.id OPERATOR(pg_catalog.=) t.queue_id
  AND GREATEST(t.deliver_at, pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.-) a.admitted_at
      OPERATOR(pg_catalog.<) COALESCE(q.dedup_window, '01:00:00'::pg_catalog.interval);
INSERT INTO queen_mq.admission AS a (queue_id, partition, transaction_id, message_id, admitted_at)
SELECT t.queue_id, t.partition, t.transaction_id, NULL, pg_catalog.clock_timestamp()
FROM queen_mq.timer t
WHERE pg_catalog.starts_with(t.timer_key, E'\x01') AND pg_catalog.strpos(t.timer_key, E'\x1f') OPERATOR(pg_catalog.>) 0
ON CONFLICT ON CONSTRAINT admission_once DO UPDATE
    SET message_id = NULL, admitted_at = excluded.admitted_at
    WHERE excluded.admitted_at OPERATOR(pg_catalog.-) a.admitted_at OPERATOR(pg_catalog.>=) (
        SELECT COALESCE(q.dedup_window, '01:00:00'::pg_catalog.interval)
        FROM queen_mq.queue q WHERE q.id OPERATOR(pg_catalog.=) a.queue_id);

-- A group may have options of its own.
ALTER TABLE queen_mq.consumer_group
    ADD COLUMN lease_time interval,
    ADD COLUMN retry_limit int,
    ADD COLUMN retry_delay interval,
    ADD COLUMN retry_backoff float8,
    ADD COLUMN retry_delay_max interval,
    ADD COLUMN max_deliveries int,
    ADD COLUMN on_exhausted text;

-- Options of a queue, and pauses.
ALTER TABLE queen_mq.queue
    ADD COLUMN delivery text,
    ADD COLUMN notify boolean,
    ADD COLUMN paused boolean NOT NULL DEFAULT false;
ALTER TABLE queen_mq.consumer_group ADD COLUMN paused boolean NOT NULL DEFAULT false;
-- Which message a replayed dead letter repeats.
ALTER TABLE queen_mq.replay ADD COLUMN message_id bigint;

-- Two views call functions that get another column. Until these are replaced, the views call nothing.
SET LOCAL search_path TO pg_catalog, pg_temp;
CREATE OR REPLACE VIEW @extschema@.queen_groups AS
SELECT g.queue, nullif(g.name, '') AS consumer_group, NULL::bigint AS pending, NULL::bigint AS in_flight,
       NULL::bigint AS retrying, NULL::bigint AS dead_letters, NULL::interval AS oldest_pending_age,
       NULL::timestamptz AS last_pop_at
FROM queen_mq.consumer_group g;
CREATE OR REPLACE VIEW @extschema@.queen_queues AS
SELECT q.name AS queue, NULL::jsonb AS options, NULL::bigint AS depth, NULL::bigint AS bytes,
       NULL::interval AS oldest_age, NULL::bigint AS partitions, NULL::bigint AS groups
FROM queen_mq.queue q;
SET LOCAL search_path TO @extschema@, pg_temp;

-- A function that gets another argument or column is another function. Those who may execute the old
-- one may execute the new one.
DO $$
DECLARE
    replaced pg_catalog.record;
    granted pg_catalog.record;
    acl pg_catalog.aclitem[];
BEGIN
    FOR replaced IN SELECT * FROM (VALUES
        ('@extschema@.queen_purge(text)', '@extschema@.queen_purge(text, text)',
         'CREATE FUNCTION @extschema@.queen_purge(queue text, partition text DEFAULT NULL)
          RETURNS bigint LANGUAGE c AS ''MODULE_PATHNAME'', ''queen_purge_wrapper'''),
        ('@extschema@.queen_ack(uuid, bigint[], text, text, text[], text)',
         '@extschema@.queen_ack(uuid, bigint[], text, text, text[], text, interval)',
         'CREATE FUNCTION @extschema@.queen_ack(lease_id uuid, message_ids bigint[] DEFAULT NULL,
              status text DEFAULT ''completed'', error text DEFAULT NULL, transaction_ids text[] DEFAULT NULL,
              partition text DEFAULT NULL, delay interval DEFAULT NULL)
          RETURNS TABLE (settled int, already int, dead_lettered int, lease_released boolean)
          LANGUAGE c AS ''MODULE_PATHNAME'', ''queen_ack_wrapper'''),
        ('@extschema@.queen_pop(text, text, int, text, int, interval, interval, boolean, text, timestamptz)',
         '@extschema@.queen_pop(text, text, int, text, int, interval, interval, boolean, text, timestamptz)',
         'CREATE FUNCTION @extschema@.queen_pop(queue text, consumer_group text DEFAULT NULL, batch int DEFAULT 1,
              partition text DEFAULT NULL, partitions int DEFAULT 1, lease_time interval DEFAULT NULL,
              wait interval DEFAULT ''0'', auto_ack boolean DEFAULT false,
              subscription_mode text DEFAULT NULL, subscription_from timestamptz DEFAULT NULL)
          RETURNS TABLE (queue text, partition text, message_id bigint, transaction_id text, payload jsonb,
              headers jsonb, created_at timestamptz, consumer_group text, delivery_attempt int,
              lease_id uuid, lease_expires_at timestamptz, failures int)
          LANGUAGE c AS ''MODULE_PATHNAME'', ''queen_pop_wrapper'''),
        ('@extschema@.queen_configure(text, interval, int, interval, float8, interval, int, text, interval, interval,
              interval, interval, bigint, text, text[], boolean)',
         '@extschema@.queen_configure(text, interval, int, interval, float8, interval, int, text, interval, interval,
              interval, interval, bigint, text, text, boolean, text[], boolean)',
         'CREATE FUNCTION @extschema@.queen_configure(queue text, lease_time interval DEFAULT NULL,
              retry_limit int DEFAULT NULL, retry_delay interval DEFAULT NULL, retry_backoff float8 DEFAULT NULL,
              retry_delay_max interval DEFAULT NULL, max_deliveries int DEFAULT NULL,
              on_exhausted text DEFAULT NULL, dedup_window interval DEFAULT NULL, delay interval DEFAULT NULL,
              retention interval DEFAULT NULL, completed_retention interval DEFAULT NULL,
              max_depth bigint DEFAULT NULL, ordering text DEFAULT NULL, delivery text DEFAULT NULL,
              notify boolean DEFAULT NULL, unset text[] DEFAULT NULL, reset boolean DEFAULT false)
          RETURNS TABLE (queue text, lease_time interval, retry_limit int, retry_delay interval,
              retry_backoff float8, retry_delay_max interval, max_deliveries int, on_exhausted text,
              dedup_window interval, delay interval, retention interval, completed_retention interval,
              max_depth bigint, ordering text, delivery text, notify boolean, created_at timestamptz)
          LANGUAGE c AS ''MODULE_PATHNAME'', ''queen_configure_wrapper'''),
        ('queen_mq.group_figures(text, text)', 'queen_mq.group_figures(text, text)',
         'CREATE FUNCTION queen_mq.group_figures(queue text, consumer_group text)
          RETURNS TABLE (pending bigint, in_flight bigint, retrying bigint, dead_letters bigint,
              oldest_pending_age interval, last_pop_at timestamptz, options jsonb)
          LANGUAGE c AS ''MODULE_PATHNAME'', ''group_figures_wrapper'''),
        ('queen_mq.queue_figures(text)', 'queen_mq.queue_figures(text)',
         'CREATE FUNCTION queen_mq.queue_figures(queue text)
          RETURNS TABLE (depth bigint, bytes bigint, oldest_age interval, partitions bigint,
              groups bigint, options jsonb)
          LANGUAGE c AS ''MODULE_PATHNAME'', ''queue_figures_wrapper''')
    ) AS f(old, new, definition) LOOP
        SELECT p.proacl INTO STRICT acl FROM pg_catalog.pg_proc p
        WHERE p.oid OPERATOR(pg_catalog.=) replaced.old::pg_catalog.regprocedure;
        EXECUTE pg_catalog.format('DROP FUNCTION %s', replaced.old);
        EXECUTE replaced.definition;
        FOR granted IN
            SELECT CASE WHEN a.grantee OPERATOR(pg_catalog.=) 0::pg_catalog.oid THEN 'PUBLIC'
                        ELSE a.grantee::pg_catalog.regrole::pg_catalog.text END AS grantee,
                   CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END AS option
            FROM pg_catalog.aclexplode(acl) a
        LOOP
            EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO %s%s',
                                      replaced.new, granted.grantee, granted.option);
        END LOOP;
    END LOOP;
END
$$;
COMMENT ON FUNCTION @extschema@.queen_purge(text, text) IS
    'Delete all messages of a queue, or of one partition, and return how many there were. Options, groups, timers and dead letters stay.';

COMMENT ON FUNCTION @extschema@.queen_configure IS
    'Create a queue, or change its options (NULL keeps an option, unset sets it back to its default). Returns the options in effect.';
COMMENT ON FUNCTION queen_mq.group_figures IS
    'The rows of the view queen_groups';
COMMENT ON FUNCTION queen_mq.queue_figures IS
    'The rows of the view queen_queues';
ALTER FUNCTION queen_mq.group_figures(text, text) COST 10000 ROWS 1;
ALTER FUNCTION queen_mq.queue_figures(text) COST 10000 ROWS 1;

COMMENT ON FUNCTION @extschema@.queen_ack IS
    'Settle messages of a lease (those named, or all that it still holds) as completed, failed, retry or dead_letter. If the lease is not valid any more, error QN001 to QN004.';
COMMENT ON FUNCTION @extschema@.queen_pop IS
    'Get messages for a consumer group (NULL: queue mode), and hold them under a lease. Settle them with queen_ack or queen_settle.';

-- A group may have options of its own.
CREATE FUNCTION @extschema@.queen_configure_group(queue text, consumer_group text,
    lease_time interval DEFAULT NULL, retry_limit int DEFAULT NULL, retry_delay interval DEFAULT NULL,
    retry_backoff float8 DEFAULT NULL, retry_delay_max interval DEFAULT NULL,
    max_deliveries int DEFAULT NULL, on_exhausted text DEFAULT NULL, ordering text DEFAULT NULL,
    unset text[] DEFAULT NULL)
RETURNS TABLE (queue text, consumer_group text, lease_time interval, retry_limit int,
    retry_delay interval, retry_backoff float8, retry_delay_max interval, max_deliveries int,
    on_exhausted text, ordering text)
LANGUAGE c AS 'MODULE_PATHNAME', 'queen_configure_group_wrapper';
COMMENT ON FUNCTION @extschema@.queen_configure_group IS
    'Give a consumer group (NULL: queue mode) options of its own, in place of the queue''s. Returns the options in effect for it.';

CREATE FUNCTION @extschema@.queen_pause(queue text, consumer_group text DEFAULT NULL)
RETURNS boolean LANGUAGE c AS 'MODULE_PATHNAME', 'queen_pause_wrapper';
COMMENT ON FUNCTION @extschema@.queen_pause IS
    'Let pops of a queue (consumer_group NULL), or of one of its groups, find nothing until queen_resume. Returns false if it is paused already.';
CREATE FUNCTION @extschema@.queen_resume(queue text, consumer_group text DEFAULT NULL)
RETURNS boolean LANGUAGE c AS 'MODULE_PATHNAME', 'queen_resume_wrapper';
COMMENT ON FUNCTION @extschema@.queen_resume IS
    'Let pops of a queue (consumer_group NULL), or of one of its groups, find messages again. Returns false if it is not paused.';

CREATE FUNCTION @extschema@.queen_dead_letter_replay_all(queue text, consumer_group text DEFAULT NULL,
    error_like text DEFAULT NULL, failed_before timestamptz DEFAULT NULL, max_messages int DEFAULT 1000)
RETURNS bigint LANGUAGE c AS 'MODULE_PATHNAME', 'queen_dead_letter_replay_all_wrapper';
COMMENT ON FUNCTION @extschema@.queen_dead_letter_replay_all(text, text, text, timestamptz, int) IS
    'Move dead letters of a queue to the ends of their partitions, each for its own group alone, the oldest first. Returns how many.';

-- Messages that recur.
ALTER TABLE queen_mq.timer
    ADD COLUMN schedule text,
    ADD COLUMN time_zone text,
    ADD COLUMN every interval,
    ADD COLUMN last_at timestamptz;
COMMENT ON TABLE queen_mq.timer IS 'Messages that enter the log later: timers, recurring messages, and pushes with a delay';

CREATE FUNCTION @extschema@.queen_every(queue text, timer_key text, schedule text, payload jsonb,
    partition text DEFAULT 'Default', headers jsonb DEFAULT NULL, time_zone text DEFAULT 'UTC')
RETURNS TABLE (status text, next_at timestamptz)
LANGUAGE c AS 'MODULE_PATHNAME', 'queen_every_wrapper';
COMMENT ON FUNCTION @extschema@.queen_every(text, text, text, jsonb, text, jsonb, text) IS
    'Push a message over and over, by a cron expression or at an interval. A timer of this key is replaced.';
COMMENT ON FUNCTION @extschema@.queen_cancel(text, text) IS
    'Cancel a timer, or end a recurring message. Returns false if there is none.';

-- Topics.
CREATE TABLE queen_mq.binding (
    pattern text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    CONSTRAINT binding_once PRIMARY KEY (pattern, queue)
);
COMMENT ON TABLE queen_mq.binding IS 'Which queues are bound to which topics';
SELECT pg_catalog.pg_extension_config_dump('queen_mq.binding', '');

CREATE FUNCTION @extschema@.queen_bind(pattern text, queue text)
RETURNS boolean LANGUAGE c AS 'MODULE_PATHNAME', 'queen_bind_wrapper';
COMMENT ON FUNCTION @extschema@.queen_bind(text, text) IS
    'Bind a queue to the topics that a pattern matches (* stands for one word, # for any number). Returns false if it is bound so already.';
CREATE FUNCTION @extschema@.queen_unbind(pattern text, queue text)
RETURNS boolean LANGUAGE c AS 'MODULE_PATHNAME', 'queen_unbind_wrapper';
COMMENT ON FUNCTION @extschema@.queen_unbind(text, text) IS
    'Undo the binding of a queue to a pattern. Returns false if there is none.';
CREATE FUNCTION @extschema@.queen_publish(topic text, payload jsonb, partition text DEFAULT 'Default',
    transaction_id text DEFAULT NULL, headers jsonb DEFAULT NULL)
RETURNS TABLE (queue text, message_id bigint, transaction_id text, status text)
LANGUAGE c AS 'MODULE_PATHNAME', 'queen_publish_wrapper';
COMMENT ON FUNCTION @extschema@.queen_publish(text, jsonb, text, text, jsonb) IS
    'Push a message to each queue that is bound to a topic. Returns a row for each queue.';
COMMENT ON FUNCTION @extschema@.queen_delete_queue IS
    'Delete a queue with its messages, groups, leases, timers, bindings and dead letters. Returns the number of messages.';

-- With this search_path, operators and functions in the views are those of PostgreSQL.
SET LOCAL search_path TO pg_catalog, pg_temp;
CREATE OR REPLACE VIEW @extschema@.queen_groups AS
SELECT g.queue,
       nullif(g.name, '') AS consumer_group,
       f.pending,
       f.in_flight,
       f.retrying,
       f.dead_letters,
       f.oldest_pending_age,
       f.last_pop_at,
       f.options,
       g.paused OR EXISTS (
           SELECT FROM queen_mq.queue q WHERE q.name = g.queue AND q.paused) AS paused
FROM queen_mq.consumer_group g
CROSS JOIN LATERAL queen_mq.group_figures(g.queue, g.name) f;
COMMENT ON VIEW @extschema@.queen_groups IS 'Consumer groups: how many messages are pending, in flight, waiting for a retry, or dead letters, and the options in effect';

CREATE OR REPLACE VIEW @extschema@.queen_queues AS
SELECT q.name AS queue,
       f.options,
       f.depth,
       f.bytes,
       f.oldest_age,
       f.partitions,
       f.groups,
       q.paused
FROM queen_mq.queue q
CROSS JOIN LATERAL queen_mq.queue_figures(q.name) f;

CREATE OR REPLACE VIEW @extschema@.queen_timers AS
SELECT q.name AS queue,
       CASE WHEN NOT starts_with(t.timer_key, E'\x01') THEN t.timer_key END AS timer_key,
       t.partition,
       t.transaction_id,
       t.deliver_at,
       t.payload,
       t.headers
FROM queen_mq.timer t
JOIN queen_mq.queue q ON q.id = t.queue_id
WHERE t.schedule IS NULL;

CREATE VIEW @extschema@.queen_schedules AS
SELECT q.name AS queue,
       t.timer_key,
       t.schedule,
       t.time_zone,
       t.deliver_at AS next_at,
       t.last_at,
       t.partition,
       t.payload,
       t.headers
FROM queen_mq.timer t
JOIN queen_mq.queue q ON q.id = t.queue_id
WHERE t.schedule IS NOT NULL;
COMMENT ON VIEW @extschema@.queen_schedules IS
    'Messages that recur: when each comes next, and when it came last';

CREATE VIEW @extschema@.queen_bindings AS
SELECT pattern, queue
FROM queen_mq.binding;
COMMENT ON VIEW @extschema@.queen_bindings IS 'Which queues get what is published on which topics';

SET LOCAL search_path TO @extschema@, pg_temp;

-- The end of every script of the extension: of the install script and of every upgrade script. It
-- gives all objects of the extension to the role that created the extension, and takes from PUBLIC
-- the right to call its routines.
--
-- PostgreSQL runs the script of a trusted extension as the superuser that initdb made, so at first
-- that superuser owns the objects. Other roles can make an object run code: a trigger, a default or
-- an operator. This code runs with the owner's rights. So the owner must be the role that created
-- the extension, and not the superuser.
DO $$
DECLARE
    member pg_catalog.record;
    owner text;
BEGIN
    SELECT pg_catalog.pg_get_userbyid(e.extowner) INTO STRICT owner
    FROM pg_catalog.pg_extension e WHERE e.extname OPERATOR(pg_catalog.=) 'queen_mq';

    FOR member IN
        SELECT CASE WHEN d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
                        THEN 'ROUTINE'
                    WHEN c.oid IS NULL THEN 'SCHEMA'
                    WHEN c.relkind OPERATOR(pg_catalog.=) 'v' THEN 'VIEW'
                    WHEN c.relkind OPERATOR(pg_catalog.=) 'S' THEN 'SEQUENCE'
                    ELSE 'TABLE'
               END AS kind,
               CASE WHEN d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
                        THEN d.objid::pg_catalog.regprocedure::pg_catalog.text
                    WHEN c.oid IS NULL THEN d.objid::pg_catalog.regnamespace::pg_catalog.text
                    ELSE d.objid::pg_catalog.regclass::pg_catalog.text
               END AS name
        FROM pg_catalog.pg_depend d
        JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
        LEFT JOIN pg_catalog.pg_class c
            ON d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass
           AND c.oid OPERATOR(pg_catalog.=) d.objid
        WHERE d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
          AND d.deptype OPERATOR(pg_catalog.=) 'e'
          AND e.extname OPERATOR(pg_catalog.=) 'queen_mq'
          AND (d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
               OR d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_namespace'::pg_catalog.regclass
               -- The sequence of a column changes its owner with its table.
               OR c.relkind OPERATOR(pg_catalog.=) ANY (ARRAY['r', 'v', 'S']::pg_catalog."char"[])
                  AND NOT EXISTS (
                      SELECT FROM pg_catalog.pg_depend o
                      WHERE o.classid OPERATOR(pg_catalog.=) d.classid
                        AND o.objid OPERATOR(pg_catalog.=) d.objid
                        AND o.refclassid OPERATOR(pg_catalog.=) d.classid
                        AND o.deptype OPERATOR(pg_catalog.=) ANY (ARRAY['a', 'i']::pg_catalog."char"[])))
    LOOP
        EXECUTE pg_catalog.format('ALTER %s %s OWNER TO %I', member.kind, member.name, owner);
        IF member.kind OPERATOR(pg_catalog.=) 'ROUTINE' THEN
            EXECUTE pg_catalog.format('REVOKE ALL ON ROUTINE %s FROM PUBLIC', member.name);
        END IF;
    END LOOP;
END
$$;
