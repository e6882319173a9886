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
        -- ALTER DEFAULT PRIVILEGES has given the new function to roles that may not have had the old one.
        FOR granted IN
            SELECT CASE WHEN a.grantee OPERATOR(pg_catalog.=) 0::pg_catalog.oid THEN 'PUBLIC'
                        ELSE a.grantee::pg_catalog.regrole::pg_catalog.text END AS grantee
            FROM pg_catalog.pg_proc p CROSS JOIN LATERAL pg_catalog.aclexplode(p.proacl) a
            WHERE p.oid OPERATOR(pg_catalog.=) replaced.new::pg_catalog.regprocedure
              AND a.grantee OPERATOR(pg_catalog.<>) p.proowner
        LOOP
            EXECUTE pg_catalog.format('REVOKE ALL ON FUNCTION %s FROM %s', replaced.new, granted.grantee);
        END LOOP;
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

-- Rights. Before, a role that might EXECUTE a function might use it on everything.
-- Which role may do what. queen_grant and the like write these rows, and each call asks for the
-- right of the role that calls (src/broker/rights.rs).
--
-- A row belongs to the role with this OID. So a role that is renamed keeps its rights, and a role
-- that is created later under an old name gets none. A dump goes to another cluster, where OIDs mean
-- other roles. So it carries names, and where its rows are loaded, the trigger below finds the roles
-- of these names there. The number of the installation says that a row has been through this: a row
-- of another installation, for which no trigger has run, gives no right.

CREATE TABLE queen_mq.grants (
    role_name text COLLATE "C" NOT NULL,    -- what the role was called when this was written
    role_oid oid NOT NULL,
    installation bigint NOT NULL,
    privilege text COLLATE "C" NOT NULL,
    -- The name of a queue, or of a namespace of markers. The empty name stands for all of them.
    target text COLLATE "C" NOT NULL DEFAULT '',
    CONSTRAINT grants_once PRIMARY KEY (role_oid, privilege, target)
);
COMMENT ON TABLE queen_mq.grants IS 'Which role has which privilege, on which queue or namespace (the empty name: on all of them)';

CREATE FUNCTION queen_mq.find_grantee() RETURNS trigger LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT r.oid INTO NEW.role_oid FROM pg_catalog.pg_roles r
    WHERE r.rolname::pg_catalog.text OPERATOR(pg_catalog.=) NEW.role_name;
    IF NOT FOUND THEN
        RAISE WARNING 'role "%", which had the privilege % of queen_mq where the dump was made, does not exist here', NEW.role_name, NEW.privilege
            USING HINT = 'Call queen_grant or queen_grant_kv for the role that takes its place.';
        RETURN NULL;
    END IF;
    SELECT i.id INTO STRICT NEW.installation FROM queen_mq.installation i;
    -- The former owner's privilege comes from the table owner as well. What another installation has
    -- written gives no right, and must not be in the way.
    DELETE FROM queen_mq.grants g
    WHERE g.role_oid OPERATOR(pg_catalog.=) NEW.role_oid
      AND g.privilege OPERATOR(pg_catalog.=) NEW.privilege
      AND g.target OPERATOR(pg_catalog.=) NEW.target
      AND g.installation OPERATOR(pg_catalog.<>) NEW.installation;
    IF EXISTS (SELECT FROM queen_mq.grants g
               WHERE g.role_oid OPERATOR(pg_catalog.=) NEW.role_oid
                 AND g.privilege OPERATOR(pg_catalog.=) NEW.privilege
                 AND g.target OPERATOR(pg_catalog.=) NEW.target)
    THEN
        RETURN NULL;
    END IF;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION queen_mq.find_grantee() IS
    'Finds the role that a row of queen_mq.grants names, when a dump is restored';

CREATE TRIGGER grantee BEFORE INSERT ON queen_mq.grants
    FOR EACH ROW EXECUTE FUNCTION queen_mq.find_grantee();

-- A dump must not carry the name of a role that has been dropped, or that has another name by now:
-- where it is restored, another role may have this name. The sweep writes new names down.
SELECT pg_catalog.pg_extension_config_dump('queen_mq.grants',
    'WHERE installation OPERATOR(pg_catalog.=) (SELECT id FROM queen_mq.installation)
       AND EXISTS (SELECT FROM pg_catalog.pg_roles r
                   WHERE r.oid OPERATOR(pg_catalog.=) role_oid
                     AND r.rolname::pg_catalog.text OPERATOR(pg_catalog.=) role_name)');

-- Functions and views of the extension have owners and rights of PostgreSQL as well, by which a role
-- may call or read them at all. The owner has these by itself.
CREATE FUNCTION queen_mq.change_acl(role oid, functions text[], views text[], is_granted boolean)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    member pg_catalog.record;
BEGIN
    FOR member IN
        SELECT CASE WHEN p.oid IS NOT NULL
                    THEN pg_catalog.format('EXECUTE ON ROUTINE %s',
                                           p.oid::pg_catalog.regprocedure::pg_catalog.text)
                    ELSE pg_catalog.format('SELECT ON TABLE %s',
                                           c.oid::pg_catalog.regclass::pg_catalog.text)
               END AS what
        FROM pg_catalog.pg_depend d
        JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
        LEFT JOIN pg_catalog.pg_proc p
            ON d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
           AND p.oid OPERATOR(pg_catalog.=) d.objid
           AND p.proname::pg_catalog.text OPERATOR(pg_catalog.=) ANY (functions)
        LEFT JOIN pg_catalog.pg_class c
            ON d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass
           AND c.oid OPERATOR(pg_catalog.=) d.objid
           AND c.relkind OPERATOR(pg_catalog.=) 'v'
           AND c.relname::pg_catalog.text OPERATOR(pg_catalog.=) ANY (views)
        WHERE d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
          AND d.deptype OPERATOR(pg_catalog.=) 'e'
          AND e.extname OPERATOR(pg_catalog.=) 'queen_mq'
          AND COALESCE(p.proowner, c.relowner) OPERATOR(pg_catalog.<>) role
          AND EXISTS (SELECT FROM pg_catalog.aclexplode(COALESCE(p.proacl, c.relacl)) a
                      WHERE a.grantee OPERATOR(pg_catalog.=) role
                        -- What another role has granted goes when that role loses its own.
                        AND a.grantor OPERATOR(pg_catalog.=) COALESCE(p.proowner, c.relowner)
                        AND a.privilege_type OPERATOR(pg_catalog.=) ANY (ARRAY['EXECUTE', 'SELECT']))
              OPERATOR(pg_catalog.<>) is_granted
    LOOP
        EXECUTE pg_catalog.format(
            CASE WHEN is_granted THEN 'GRANT %s TO %I' ELSE 'REVOKE %s FROM %I CASCADE' END,
            member.what, pg_catalog.pg_get_userbyid(role));
    END LOOP;
END
$$;
COMMENT ON FUNCTION queen_mq.change_acl(oid, text[], text[], boolean) IS
    'Grants EXECUTE on functions and SELECT on views of the extension, or revokes it';

CREATE FUNCTION queen_mq.sees(queue text, privilege text)
RETURNS boolean STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'sees_wrapper';
CREATE FUNCTION @extschema@.queen_grant(role text, privilege text, queue text DEFAULT NULL)
RETURNS boolean LANGUAGE c AS 'MODULE_PATHNAME', 'queen_grant_wrapper';
CREATE FUNCTION @extschema@.queen_revoke(role text, privilege text, queue text DEFAULT NULL)
RETURNS boolean LANGUAGE c AS 'MODULE_PATHNAME', 'queen_revoke_wrapper';
CREATE FUNCTION @extschema@.queen_grant_kv(role text, privilege text, ns text DEFAULT NULL)
RETURNS boolean LANGUAGE c AS 'MODULE_PATHNAME', 'queen_grant_kv_wrapper';
CREATE FUNCTION @extschema@.queen_revoke_kv(role text, privilege text, ns text DEFAULT NULL)
RETURNS boolean LANGUAGE c AS 'MODULE_PATHNAME', 'queen_revoke_kv_wrapper';
COMMENT ON FUNCTION @extschema@.queen_grant(text, text, text) IS
    'Grant a role the privilege push, pop, manage or monitor on a queue, or on all queues (NULL). Returns false if it was granted before.';
COMMENT ON FUNCTION @extschema@.queen_revoke(text, text, text) IS
    'Take a privilege on a queue from a role; NULL: on all queues, also on single ones. Returns false if it was not granted.';
COMMENT ON FUNCTION @extschema@.queen_grant_kv(text, text, text) IS
    'Grant a role the privilege read or write on a namespace of markers, or on all of them (NULL). Returns false if it was granted before.';
COMMENT ON FUNCTION @extschema@.queen_revoke_kv(text, text, text) IS
    'Take a privilege on a namespace of markers from a role; NULL: on all namespaces, also on single ones. Returns false if it was not granted.';
COMMENT ON FUNCTION queen_mq.sees(text, text) IS
    'Whether the calling role has a privilege on a queue, or on all queues (NULL). The views ask it.';

-- What the following trigger grants, taken again, but for what the role needs for other privileges.
CREATE FUNCTION queen_mq.take_from_former_owner(role oid, functions text[], views text[])
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    member pg_catalog.record;
BEGIN
    FOR member IN
        SELECT CASE WHEN p.oid IS NOT NULL
                    THEN pg_catalog.format('EXECUTE ON ROUTINE %s',
                                           p.oid::pg_catalog.regprocedure::pg_catalog.text)
                    WHEN n.oid IS NOT NULL
                    THEN pg_catalog.format('USAGE ON SCHEMA %s',
                                           n.oid::pg_catalog.regnamespace::pg_catalog.text)
                    ELSE pg_catalog.format('SELECT ON %s %s',
                                           CASE WHEN c.relkind OPERATOR(pg_catalog.=) 'S'
                                                THEN 'SEQUENCE' ELSE 'TABLE' END,
                                           c.oid::pg_catalog.regclass::pg_catalog.text)
               END AS what,
               COALESCE(p.proname::pg_catalog.text OPERATOR(pg_catalog.=) ANY (functions),
                        c.relkind OPERATOR(pg_catalog.=) 'v'
                        AND c.relname::pg_catalog.text OPERATOR(pg_catalog.=) ANY (views),
                        false) AS is_needed
        FROM pg_catalog.pg_depend d
        JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
        LEFT JOIN pg_catalog.pg_proc p
            ON d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
           AND p.oid OPERATOR(pg_catalog.=) d.objid
        LEFT JOIN pg_catalog.pg_class c
            ON d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass
           AND c.oid OPERATOR(pg_catalog.=) d.objid
        LEFT JOIN pg_catalog.pg_namespace n
            ON d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_namespace'::pg_catalog.regclass
           AND n.oid OPERATOR(pg_catalog.=) d.objid
        WHERE d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
          AND d.deptype OPERATOR(pg_catalog.=) 'e'
          AND e.extname OPERATOR(pg_catalog.=) 'queen_mq'
          AND COALESCE(p.proowner, c.relowner, n.nspowner) OPERATOR(pg_catalog.<>) role
          AND EXISTS (SELECT FROM pg_catalog.aclexplode(COALESCE(p.proacl, c.relacl, n.nspacl)) a
                      WHERE a.grantee OPERATOR(pg_catalog.=) role)
    LOOP
        EXECUTE pg_catalog.format(
            CASE WHEN member.is_needed THEN 'REVOKE GRANT OPTION FOR %s FROM %I CASCADE'
                 ELSE 'REVOKE %s FROM %I CASCADE' END,
            member.what, pg_catalog.pg_get_userbyid(role));
    END LOOP;
END
$$;
COMMENT ON FUNCTION queen_mq.take_from_former_owner(oid, text[], text[]) IS
    'Takes from a role what a restore has granted it as the former owner, but for what it needs otherwise';

CREATE OR REPLACE FUNCTION queen_mq.grant_to_former_owner() RETURNS trigger LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    member pg_catalog.record;
BEGIN
    IF EXISTS (
        SELECT FROM pg_catalog.pg_extension e
        WHERE e.extname OPERATOR(pg_catalog.=) 'queen_mq'
          AND pg_catalog.pg_get_userbyid(e.extowner)::pg_catalog.text
              OPERATOR(pg_catalog.=) NEW.role_name)
    THEN
        -- The role owns the extension here, too. One row of its name is enough.
        DELETE FROM queen_mq.owner o
        WHERE o.role_name OPERATOR(pg_catalog.=) NEW.role_name
          AND EXISTS (SELECT FROM queen_mq.owner first
                      WHERE first.role_name OPERATOR(pg_catalog.=) o.role_name
                        AND first.ctid OPERATOR(pg_catalog.<) o.ctid);
        RETURN NULL;
    END IF;
    DELETE FROM queen_mq.owner o WHERE o.role_name OPERATOR(pg_catalog.=) NEW.role_name;
    IF NOT EXISTS (
        SELECT FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) NEW.role_name)
    THEN
        RAISE WARNING 'role "%", which owned queen_mq where the dump was made, does not exist here', NEW.role_name
            USING HINT = 'Make the role that takes its place a member of the owner of the extension, or grant it privileges with queen_grant.';
        RETURN NULL;
    END IF;
    INSERT INTO queen_mq.grants (role_name, privilege) VALUES (NEW.role_name, 'owner')
    ON CONFLICT ON CONSTRAINT grants_once DO NOTHING;
    EXECUTE pg_catalog.format('GRANT USAGE ON SCHEMA queen_mq TO %I WITH GRANT OPTION', NEW.role_name);
    FOR member IN
        SELECT CASE WHEN d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
                    THEN pg_catalog.format('EXECUTE ON ROUTINE %s',
                                           d.objid::pg_catalog.regprocedure::pg_catalog.text)
                    ELSE pg_catalog.format('SELECT ON %s %s',
                                           CASE WHEN c.relkind OPERATOR(pg_catalog.=) 'S'
                                                THEN 'SEQUENCE' ELSE 'TABLE' END,
                                           d.objid::pg_catalog.regclass::pg_catalog.text)
               END AS what
        FROM pg_catalog.pg_depend d
        JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
        LEFT JOIN pg_catalog.pg_class c
            ON d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass
           AND c.oid OPERATOR(pg_catalog.=) d.objid
        WHERE d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
          AND d.deptype OPERATOR(pg_catalog.=) 'e'
          AND e.extname OPERATOR(pg_catalog.=) 'queen_mq'
          AND (d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
               OR c.relkind OPERATOR(pg_catalog.=) ANY (ARRAY['r', 'v', 'S']::pg_catalog."char"[]))
    LOOP
        EXECUTE pg_catalog.format('GRANT %s TO %I WITH GRANT OPTION', member.what, NEW.role_name);
    END LOOP;
    RETURN NULL;
END
$$;

-- A dump must not carry the name of a role that has another name by now, or has given the extension
-- away: where it is restored, another role may have this name. The sweep writes the new name down.
SELECT pg_catalog.pg_extension_config_dump('queen_mq.owner',
    'WHERE role_name OPERATOR(pg_catalog.=)
           (SELECT pg_catalog.pg_get_userbyid(e.extowner)::pg_catalog.text
            FROM pg_catalog.pg_extension e WHERE e.extname OPERATOR(pg_catalog.=) ''queen_mq'')');

-- With this search_path, operators and functions in the views are those of PostgreSQL.
SET LOCAL search_path TO pg_catalog, pg_temp;
CREATE OR REPLACE VIEW @extschema@.queen_messages WITH (security_barrier) AS
SELECT q.name AS queue,
       s.partition,
       s.id * 28 + m.place - 1 AS message_id,
       coalesce(m.transaction_id, 'msg-' || (s.id * 28 + m.place - 1)) AS transaction_id,
       m.payload,
       m.headers,
       s.created_at
FROM queen_mq.segment s
JOIN queen_mq.queue q ON q.id = s.queue_id
CROSS JOIN LATERAL unnest(s.payloads, s.transaction_ids, s.headers)
    WITH ORDINALITY AS m(payload, transaction_id, headers, place)
WHERE ((SELECT queen_mq.sees(NULL, 'pop')) OR queen_mq.sees(q.name, 'pop'));

CREATE OR REPLACE VIEW @extschema@.queen_dead_letters WITH (security_barrier) AS
SELECT id AS dead_letter_id,
       queue,
       nullif(consumer_group, '') AS consumer_group,
       partition,
       message_id,
       transaction_id,
       payload,
       headers,
       error,
       failures,
       deliveries,
       created_at,
       failed_at
FROM queen_mq.dead_letter
WHERE ((SELECT queen_mq.sees(NULL, 'pop')) OR queen_mq.sees(queue, 'pop'));

CREATE OR REPLACE VIEW @extschema@.queen_groups AS
SELECT CASE WHEN f.pending IS NOT NULL THEN g.queue END AS queue,
       CASE WHEN (SELECT queen_mq.sees(NULL, 'monitor')) OR queen_mq.sees(g.queue, 'monitor')
            THEN nullif(g.name, '') END AS consumer_group,
       f.pending,
       f.in_flight,
       f.retrying,
       f.dead_letters,
       f.oldest_pending_age,
       f.last_pop_at,
       f.options,
       CASE WHEN f.pending IS NOT NULL THEN g.paused OR EXISTS (
           SELECT FROM queen_mq.queue q WHERE q.name = g.queue AND q.paused) END AS paused
FROM queen_mq.consumer_group g
CROSS JOIN LATERAL queen_mq.group_figures(g.queue, g.name) f
WHERE CASE WHEN f.pending IS NOT NULL THEN g.queue END = g.queue;
COMMENT ON VIEW @extschema@.queen_groups IS 'Consumer groups: how many messages are pending, in flight, waiting for a retry, or dead letters, and the options in effect';

CREATE OR REPLACE VIEW @extschema@.queen_queues AS
SELECT CASE WHEN f.depth IS NOT NULL THEN q.name END AS queue,
       f.options,
       f.depth,
       f.bytes,
       f.oldest_age,
       f.partitions,
       f.groups,
       CASE WHEN f.depth IS NOT NULL THEN q.paused END AS paused
FROM queen_mq.queue q
CROSS JOIN LATERAL queen_mq.queue_figures(q.name) f
WHERE CASE WHEN f.depth IS NOT NULL THEN q.name END = q.name;

CREATE OR REPLACE VIEW @extschema@.queen_leases AS
SELECT CASE WHEN f.lease_id IS NOT NULL THEN g.queue END AS queue,
       CASE WHEN (SELECT queen_mq.sees(NULL, 'monitor')) OR queen_mq.sees(g.queue, 'monitor')
            THEN nullif(g.name, '') END AS consumer_group,
       f.partition,
       f.lease_id,
       f.expires_at,
       f.messages,
       f.delivery_attempt
FROM queen_mq.consumer_group g
CROSS JOIN LATERAL queen_mq.live_leases(g.queue, g.name) f
WHERE CASE WHEN f.lease_id IS NOT NULL THEN g.queue END = g.queue;

CREATE OR REPLACE VIEW @extschema@.queen_timers WITH (security_barrier) AS
SELECT q.name AS queue,
       CASE WHEN NOT starts_with(t.timer_key, E'\x01') THEN t.timer_key END AS timer_key,
       t.partition,
       t.transaction_id,
       t.deliver_at,
       t.payload,
       t.headers
FROM queen_mq.timer t
JOIN queen_mq.queue q ON q.id = t.queue_id
WHERE t.schedule IS NULL
  AND ((SELECT queen_mq.sees(NULL, 'pop')) OR queen_mq.sees(q.name, 'pop'));

CREATE VIEW @extschema@.queen_schedules WITH (security_barrier) AS
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
WHERE t.schedule IS NOT NULL
  AND ((SELECT queen_mq.sees(NULL, 'pop')) OR queen_mq.sees(q.name, 'pop'));
COMMENT ON VIEW @extschema@.queen_schedules IS
    'Messages that recur: when each comes next, and when it came last';

CREATE VIEW @extschema@.queen_bindings WITH (security_barrier) AS
SELECT pattern, queue
FROM queen_mq.binding
WHERE ((SELECT queen_mq.sees(NULL, 'monitor')) OR queen_mq.sees(queue, 'monitor'));
COMMENT ON VIEW @extschema@.queen_bindings IS 'Which queues get what is published on which topics';

CREATE VIEW @extschema@.queen_blocked AS
SELECT CASE WHEN f.partition IS NOT NULL THEN g.queue END AS queue,
       CASE WHEN (SELECT queen_mq.sees(NULL, 'monitor')) OR queen_mq.sees(g.queue, 'monitor')
            THEN nullif(g.name, '') END AS consumer_group,
       f.partition,
       f.message_id,
       f.transaction_id,
       f.state,
       f.delivery_attempt,
       f.failures,
       f.last_error,
       f.due_at
FROM queen_mq.consumer_group g
CROSS JOIN LATERAL queen_mq.blocked_partitions(g.queue, g.name) f
WHERE CASE WHEN f.partition IS NOT NULL THEN g.queue END = g.queue;
COMMENT ON VIEW @extschema@.queen_blocked IS
    'Partitions of ordered groups whose first message is leased or is to be delivered again, and what its last failure said';

CREATE VIEW @extschema@.queen_grants WITH (security_barrier) AS
SELECT r.rolname::text AS role,
       g.privilege,
       CASE WHEN g.privilege NOT IN ('read', 'write') THEN nullif(g.target, '') END AS queue,
       CASE WHEN g.privilege IN ('read', 'write') THEN nullif(g.target, '') END AS namespace
FROM queen_mq.grants g
JOIN pg_roles r ON r.oid = g.role_oid
WHERE g.installation = (SELECT id FROM queen_mq.installation)
  AND ((SELECT queen_mq.sees(NULL, 'owner')) OR pg_has_role(g.role_oid, 'USAGE'));
COMMENT ON VIEW @extschema@.queen_grants IS
    'Which role has which privilege, on which queue or namespace; NULL: on all of them';

SET LOCAL search_path TO @extschema@, pg_temp;

-- What roles may call and read so far, they may call and read on all queues, and on all namespaces.
-- A bundle could do everything. (The sweep, and what grants, are for the owner alone.)
INSERT INTO queen_mq.grants (role_name, privilege)
SELECT DISTINCT pg_catalog.pg_get_userbyid(a.grantee)::pg_catalog.text, n.privilege
FROM (VALUES
    ('queen_push', 'push'), ('queen_push_batch', 'push'), ('queen_push_items', 'push'),
    ('queen_schedule', 'push'), ('queen_cancel', 'push'), ('queen_tx_commit', 'push'),
    ('queen_pop', 'pop'), ('queen_wait', 'pop'), ('queen_ack', 'pop'), ('queen_settle', 'pop'),
    ('queen_extend', 'pop'), ('queen_subscribe', 'pop'), ('queen_tx_commit', 'pop'),
    ('queen_messages', 'pop'), ('queen_dead_letters', 'pop'), ('queen_timers', 'pop'),
    ('queen_configure', 'manage'), ('queen_delete_queue', 'manage'), ('queen_purge', 'manage'),
    ('queen_unsubscribe', 'manage'), ('queen_seek', 'manage'),
    ('queen_dead_letter_replay', 'manage'), ('queen_dead_letter_purge', 'manage'),
    ('queen_metrics', 'monitor'), ('queen_prometheus', 'monitor'), ('queen_queues', 'monitor'),
    ('queen_groups', 'monitor'), ('queen_leases', 'monitor'),
    ('queen_kv_get', 'read'), ('queen_kv_get_many', 'read'), ('queen_kv_list', 'read'),
    ('queen_tx_commit', 'read'), ('queen_kv_put', 'write'), ('queen_kv_put_if_absent', 'write'),
    ('queen_kv_delete', 'write'), ('queen_kv_incr', 'write'), ('queen_kv_check', 'write'),
    ('queen_tx_commit', 'write')) AS n(name, privilege)
CROSS JOIN pg_catalog.pg_extension e
JOIN pg_catalog.pg_depend d
    ON d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
   AND d.refobjid OPERATOR(pg_catalog.=) e.oid AND d.deptype OPERATOR(pg_catalog.=) 'e'
LEFT JOIN pg_catalog.pg_proc p
    ON d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
   AND p.oid OPERATOR(pg_catalog.=) d.objid
LEFT JOIN pg_catalog.pg_class c
    ON d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass
   AND c.oid OPERATOR(pg_catalog.=) d.objid
CROSS JOIN LATERAL pg_catalog.aclexplode(COALESCE(p.proacl, c.relacl)) a
WHERE e.extname OPERATOR(pg_catalog.=) 'queen_mq'
  AND COALESCE(p.proname, c.relname)::pg_catalog.text OPERATOR(pg_catalog.=) n.name
  AND a.privilege_type OPERATOR(pg_catalog.=) ANY (ARRAY['EXECUTE', 'SELECT'])
  AND a.grantee OPERATOR(pg_catalog.<>) ALL (
      ARRAY[0::pg_catalog.oid, e.extowner, COALESCE(p.proowner, c.relowner)]);
-- The views ask this function with the rights of their reader.
SELECT queen_mq.change_acl(r.role_oid, ARRAY['sees'], ARRAY['queen_grants'], true)
FROM (SELECT DISTINCT g.role_oid FROM queen_mq.grants g) AS r;

-- The end of every script of the extension: of the install script and of every upgrade script. It
-- gives all objects of the extension to the role that created the extension, takes from PUBLIC the
-- right to call its routines, and sees to it that dumps carry what other roles have been granted.
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

-- A right that a script grants or takes becomes an *initial* right of the object, with all others that
-- the object has by then. pg_dump leaves initial rights out, because CREATE EXTENSION gives them where
-- the dump is restored. It gives other roles none. So what roles have been granted on objects of the
-- extension, before this script and by it, is taken from the initial rights.
UPDATE pg_catalog.pg_init_privs i
SET initprivs = ARRAY(
    SELECT a.item FROM pg_catalog.unnest(i.initprivs) WITH ORDINALITY AS a(item, place)
    WHERE EXISTS (SELECT FROM pg_catalog.aclexplode(ARRAY[a.item]) x
                  WHERE x.grantee OPERATOR(pg_catalog.=) e.extowner)
    ORDER BY a.place)
FROM pg_catalog.pg_depend d
JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
WHERE d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
  AND d.deptype OPERATOR(pg_catalog.=) 'e'
  AND e.extname OPERATOR(pg_catalog.=) 'queen_mq'
  AND d.classid OPERATOR(pg_catalog.=) i.classoid
  AND d.objid OPERATOR(pg_catalog.=) i.objoid
  AND EXISTS (SELECT FROM pg_catalog.aclexplode(i.initprivs) x
              WHERE x.grantee OPERATOR(pg_catalog.<>) e.extowner);
-- Where the owner has what an owner has by itself, there is nothing to say. (PUBLIC has EXECUTE by
-- itself, so of a function there is.)
DELETE FROM pg_catalog.pg_init_privs i
USING pg_catalog.pg_depend d
JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
WHERE d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
  AND d.deptype OPERATOR(pg_catalog.=) 'e'
  AND e.extname OPERATOR(pg_catalog.=) 'queen_mq'
  AND d.classid OPERATOR(pg_catalog.=) i.classoid
  AND d.objid OPERATOR(pg_catalog.=) i.objoid
  AND d.classid OPERATOR(pg_catalog.<>) 'pg_catalog.pg_proc'::pg_catalog.regclass;
-- From version 17 on, PostgreSQL notes which roles are named in initial rights, and keeps them.
DELETE FROM pg_catalog.pg_shdepend s
USING pg_catalog.pg_depend d
JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
WHERE d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
  AND d.deptype OPERATOR(pg_catalog.=) 'e'
  AND e.extname OPERATOR(pg_catalog.=) 'queen_mq'
  AND s.dbid OPERATOR(pg_catalog.=) (SELECT b.oid FROM pg_catalog.pg_database b
      WHERE b.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
  AND s.deptype OPERATOR(pg_catalog.=) 'i'
  AND s.refobjid OPERATOR(pg_catalog.<>) e.extowner
  AND s.classid OPERATOR(pg_catalog.=) d.classid
  AND s.objid OPERATOR(pg_catalog.=) d.objid;
