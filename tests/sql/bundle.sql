-- queen_tx_commit: all or nothing, in the caller's transaction. A refusal is an answer, not an error.
\set VERBOSITY sqlstate
\pset footer off
\pset null (null)

SELECT count(*) FROM generate_series(1, 3) AS n, queen_push('in', to_jsonb(n), transaction_id => 't' || n);
SELECT DISTINCT lease_id AS lease FROM queen_pop('in', 'g', batch => 3, subscription_mode => 'all') \gset

-- Results are one list: operations, then kv. Reads see what the bundle wrote.
SELECT queen_tx_commit(
  operations => jsonb_build_array(
    jsonb_build_object('type', 'ack', 'leaseId', :'lease', 'transactionId', 't1'),
    jsonb_build_object('type', 'push', 'queue', 'out', 'payload', 1, 'transactionId', 'o1', 'partition', 'p', 'headers', '{"h": 1}'::jsonb)),
  kv => '[{"op": "get", "ns": "b", "key": "k"},
          {"op": "putIfAbsent", "ns": "b", "key": "k", "value": "v", "ttlSeconds": 3600, "required": true},
          {"op": "getMany", "ns": "b", "keys": ["z", "k", "a"]}]') AS reply \gset
SELECT r ->> 'index' AS index, coalesce(r ->> 'type', r ->> 'op') AS what,
       r - '{index,type,op,leaseId,messageId,version,expiresAt,rows}'::text[] AS rest
FROM jsonb_array_elements(:'reply'::jsonb -> 'results') AS r;
SELECT jsonb_path_query_array(:'reply', '$.results[*].rows[*].key') AS rows, :'reply'::jsonb ->> 'success' AS success;
SELECT queue, partition, payload, headers, transaction_id FROM queen_messages WHERE queue = 'out';

-- A refused bundle changes nothing, and the transaction goes on.
CREATE FUNCTION pg_temp.refusal(reply jsonb) RETURNS TABLE (success text, reason text, index text, kv_reason text, value jsonb, results jsonb, says boolean)
LANGUAGE sql AS $$ SELECT reply ->> 'success', reply ->> 'reason', reply ->> 'failedIndex', reply ->> 'kvReason', reply -> 'value', reply -> 'results', reply ->> 'error' <> '' $$;

BEGIN;
SELECT * FROM pg_temp.refusal(queen_tx_commit(
  operations => jsonb_build_array(jsonb_build_object('type', 'ack', 'leaseId', :'lease', 'transactionId', 't2'),
                                  jsonb_build_object('type', 'push', 'queue', 'out', 'payload', 2)),
  kv => '[{"op": "putIfAbsent", "ns": "b", "key": "new", "value": 1, "forever": true},
          {"op": "putIfAbsent", "ns": "b", "key": "k", "value": 2, "ttlSeconds": 60, "required": true}]'));
SELECT * FROM pg_temp.refusal(queen_tx_commit(
  operations => jsonb_build_array(jsonb_build_object('type', 'ack', 'leaseId', :'lease', 'transactionId', 't2'),
                                  jsonb_build_object('type', 'push', 'queue', 'out', 'payload', 2, 'partition', 'p', 'transactionId', 'o1'))));
SELECT * FROM pg_temp.refusal(queen_tx_commit(
  operations => jsonb_build_array(jsonb_build_object('type', 'push', 'queue', 'out', 'payload', 3),
                                  jsonb_build_object('type', 'ack', 'leaseId', :'lease', 'transactionId', 'absent'))));
SELECT * FROM pg_temp.refusal(queen_tx_commit(
  operations => jsonb_build_array(jsonb_build_object('type', 'ack', 'leaseId', gen_random_uuid()))));
SELECT * FROM pg_temp.refusal(queen_tx_commit(
  operations => jsonb_build_array(jsonb_build_object('type', 'ack', 'leaseId', :'lease', 'transactionId', 't1', 'status', 'failed'))));
SELECT * FROM pg_temp.refusal(queen_tx_commit(
  kv => '[{"op": "putIfAbsent", "ns": "b", "key": "new", "value": 1, "forever": true}]', required_leases => ARRAY[gen_random_uuid()]));
COMMIT;
SELECT count(*) AS pushed FROM queen_messages WHERE queue = 'out';
SELECT found FROM queen_kv_get('b', 'new');

-- An expired lease, in an operation and as a required lease.
SELECT lease_id AS short FROM queen_pop('in', 'short', lease_time => '50 ms', subscription_mode => 'all') \gset
DO $$ BEGIN PERFORM pg_sleep(0.1); END $$;
SELECT * FROM pg_temp.refusal(queen_tx_commit(operations => jsonb_build_array(jsonb_build_object('type', 'ack', 'leaseId', :'short'))));
SELECT * FROM pg_temp.refusal(queen_tx_commit(kv => '[{"op": "putIfAbsent", "ns": "b", "key": "new", "value": 1, "forever": true}]', required_leases => ARRAY[:'short']::uuid[]));

-- A marker operation that is not required reports its result: the bundle is done.
SELECT r ->> 'applied' AS applied, r ->> 'reason' AS reason, r -> 'value' AS value
FROM jsonb_array_elements(queen_tx_commit(kv => '[{"op": "putIfAbsent", "ns": "b", "key": "k", "value": 2, "ttlSeconds": 60}]') -> 'results') AS r;

-- The acks of one lease are settled together; refused bundles have changed nothing in the lease.
SELECT r - '{leaseId}'::text[] AS ack FROM jsonb_array_elements(queen_tx_commit(operations => jsonb_build_array(
  jsonb_build_object('type', 'ack', 'leaseId', :'lease', 'transactionId', 't3'),
  jsonb_build_object('type', 'ack', 'leaseId', :'lease', 'transactionId', 't2'),
  jsonb_build_object('type', 'ack', 'leaseId', :'lease', 'transactionId', 't1'))) -> 'results') AS r;

-- Malformed or empty: 22023.
SELECT queen_tx_commit();
SELECT queen_tx_commit(operations => '{}');
SELECT queen_tx_commit(operations => '[{"type": "pop"}]');
SELECT queen_tx_commit(operations => '[{"type": "push", "queue": "out"}]');
SELECT queen_tx_commit(operations => '[{"type": "push", "queue": "out", "payload": 1, "transaction_id": "x"}]');
SELECT queen_tx_commit(operations => '[{"type": "ack"}]');
SELECT queen_tx_commit(operations => '[{"type": "ack", "leaseId": "x"}]');
SELECT queen_tx_commit(kv => '[{"op": "putIfAbsent", "ns": "b", "key": "k", "value": 1}]');
SELECT queen_tx_commit(kv => '[{"op": "putIfAbsent", "ns": "b", "key": "k", "value": 1, "forever": true, "ttlSeconds": 1}]');
SELECT queen_tx_commit(kv => '[{"op": "delete", "ns": "b", "key": "k"}, {"op": "delete", "ns": "b", "key": "k"}]');
