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
          LANGUAGE c AS ''MODULE_PATHNAME'', ''queen_pop_wrapper''')
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

-- The status of a message is looked up by its transaction_id.
CREATE INDEX timer_of_transaction ON queen_mq.timer (queue_id, partition, transaction_id, deliver_at);
CREATE INDEX dead_letter_of_message ON queen_mq.dead_letter (queue, partition, transaction_id COLLATE "C");
ALTER TABLE queen_mq.replay ADD COLUMN transaction_id text COLLATE "C";
UPDATE queen_mq.replay r SET transaction_id = s.transaction_ids[1]
FROM queen_mq.segment s
WHERE s.queue_id OPERATOR(pg_catalog.=) r.queue_id AND s.partition OPERATOR(pg_catalog.=) r.partition
  AND s.id OPERATOR(pg_catalog.=) r.segment_id;
CREATE INDEX replay_of_message ON queen_mq.replay (queue_id, partition, transaction_id);
CREATE FUNCTION @extschema@.queen_message_status(queue text, transaction_id text, partition text DEFAULT 'Default')
RETURNS TABLE (consumer_group text, message_id bigint, state text, delivery_attempt int,
    lease_expires_at timestamptz, due_at timestamptz, error text)
LANGUAGE c AS 'MODULE_PATHNAME', 'queen_message_status_wrapper';
COMMENT ON FUNCTION @extschema@.queen_message_status(text, text, text) IS
    'What became of the message of a transaction_id, a row for each consumer group that it is for';

-- Pops from several queues.
CREATE FUNCTION @extschema@.queen_pop_any(queues text[], consumer_group text DEFAULT NULL, batch int DEFAULT 1,
    partitions int DEFAULT 1, lease_time interval DEFAULT NULL, wait interval DEFAULT '0',
    auto_ack boolean DEFAULT false, subscription_mode text DEFAULT NULL,
    subscription_from timestamptz DEFAULT NULL)
RETURNS TABLE (queue text, partition text, message_id bigint, transaction_id text, payload jsonb,
    headers jsonb, created_at timestamptz, consumer_group text, delivery_attempt int,
    lease_id uuid, lease_expires_at timestamptz, failures int)
LANGUAGE c AS 'MODULE_PATHNAME', 'queen_pop_any_wrapper';
COMMENT ON FUNCTION @extschema@.queen_pop_any IS
    'Get messages, as queen_pop does, from the first of several queues that has some, and from that one alone.';

-- What holds a partition up.
CREATE FUNCTION queen_mq.blocked_partitions(queue text, consumer_group text)
RETURNS TABLE (partition text, message_id bigint, transaction_id text, state text,
    delivery_attempt int, failures int, last_error text, due_at timestamptz)
COST 10000 ROWS 10 LANGUAGE c AS 'MODULE_PATHNAME', 'blocked_partitions_wrapper';
COMMENT ON FUNCTION queen_mq.blocked_partitions IS
    'The rows of the view queen_blocked';

-- With this search_path, operators and functions in the views are those of PostgreSQL.
SET LOCAL search_path TO pg_catalog, pg_temp;
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

CREATE VIEW @extschema@.queen_blocked AS
SELECT g.queue,
       nullif(g.name, '') AS consumer_group,
       f.partition,
       f.message_id,
       f.transaction_id,
       f.state,
       f.delivery_attempt,
       f.failures,
       f.last_error,
       f.due_at
FROM queen_mq.consumer_group g
CROSS JOIN LATERAL queen_mq.blocked_partitions(g.queue, g.name) f;
COMMENT ON VIEW @extschema@.queen_blocked IS
    'Partitions of ordered groups whose first message is leased or is to be delivered again, and what its last failure said';

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
