-- The role that creates the extension can use it and owns all of its objects. Other roles have no
-- rights, but those that it grants.
\set VERBOSITY terse
\set SHOW_CONTEXT never
\pset footer off
SET client_min_messages = warning;
DROP EXTENSION queen_mq;
CREATE ROLE test_owner;
CREATE ROLE test_stranger;
GRANT CREATE ON DATABASE test_sql TO test_owner;
CREATE SCHEMA "the app" AUTHORIZATION test_owner;

-- The extension is trusted: no superuser is needed.
SET ROLE test_owner;
SET search_path = "the app";
CREATE EXTENSION queen_mq;
SELECT status FROM queen_push('rights', '1');
SELECT payload, lease_id FROM queen_pop('rights') \gset
SELECT settled FROM queen_ack(:'lease_id');
SELECT applied FROM queen_kv_put_if_absent('rights', 'k', '1', ttl => '1 hour');
SELECT queen_tx_commit(operations => '[{"type": "push", "queue": "rights", "payload": 2}]') ->> 'success' AS success;
SELECT count(*) FROM queen_messages;
SELECT queue, consumer_group, pending FROM queen_groups;
SELECT count(*) FROM queen_dead_letters;
SELECT count(*) FROM queen_mq.queue;
-- Objects that another role owns:
WITH member AS (
    SELECT d.classid, d.objid FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
    WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND e.extname = 'queen_mq')
SELECT pg_describe_object(m.classid, m.objid, 0) FROM member m
LEFT JOIN pg_class c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid
LEFT JOIN pg_proc p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid
LEFT JOIN pg_namespace n ON m.classid = 'pg_namespace'::regclass AND n.oid = m.objid
WHERE coalesce(c.relowner, p.proowner, n.nspowner) <> 'test_owner'::regrole;

-- Another role, with the right to use the schema.
RESET ROLE;
GRANT USAGE ON SCHEMA "the app" TO test_stranger;
SET ROLE test_stranger;
SELECT queen_push('rights', '1');
SELECT queen_pop('rights');
SELECT queen_kv_get('rights', 'k');
SELECT queen_grant('test_stranger', 'push');
SELECT count(*) FROM queen_messages;
SELECT count(*) FROM queen_groups;
SELECT count(*) FROM queen_mq.queue;

-- EXECUTE and SELECT alone give nothing.
SET ROLE test_owner;
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA "the app", queen_mq TO test_stranger;
GRANT SELECT ON queen_messages, queen_groups, queen_grants TO test_stranger;
SET ROLE test_stranger;
\set VERBOSITY default
SELECT queen_push('rights', '1');
SELECT queen_pop('rights');
SELECT queen_kv_get('rights', 'k');
SELECT queen_grant('test_stranger', 'push');
\set VERBOSITY terse
SELECT count(*) FROM queen_messages;
SELECT count(*) FROM queen_groups;
SELECT count(*) FROM queen_grants;

-- The role that created the extension grants privileges.
SET ROLE test_owner;
SELECT queen_grant('test_stranger', 'push', 'rights');
SET ROLE test_stranger;
SELECT status FROM queen_push('rights', '3');
SELECT queen_push('others', '3');
DELETE FROM queen_mq.queue;
INSERT INTO queen_mq.marker SELECT * FROM queen_mq.marker;
TRUNCATE queen_mq.segment;
SELECT queen_pop('rights');
SELECT * FROM queen_grants;
SET ROLE test_owner;
SELECT queen_grant('test_stranger', 'pop', 'rights'), queen_grant('test_stranger', 'monitor', 'rights');
SELECT queen_push('others', '4');
SET ROLE test_stranger;
SELECT queue, payload FROM queen_messages ORDER BY message_id;
SELECT queue FROM queen_groups;
SELECT queue FROM queen_queues;
CALL queen_wait('rights', 'waiting', '0 s');
CALL queen_wait('others', 'waiting', '0 s');
-- What is revoked is gone at once, with the right to call.
SET ROLE test_owner;
SELECT queen_revoke('test_stranger', 'pop', 'others'), queen_revoke('test_stranger', 'pop', 'rights');
SET ROLE test_stranger;
SELECT queen_pop('rights');
SELECT count(*) FROM queen_messages;
SELECT queue FROM queen_queues;

-- Everything is dropped with the extension.
SET ROLE test_owner;
DROP EXTENSION queen_mq;
RESET ROLE;
SELECT to_regnamespace('queen_mq');
DROP SCHEMA "the app";
REVOKE CREATE ON DATABASE test_sql FROM test_owner;
DROP ROLE test_owner, test_stranger;
