-- A lost reply: a settlement that is repeated counts in `already`, whatever its status was, and changes nothing.
\set VERBOSITY sqlstate
\pset footer off
\pset null (null)

-- take: pops up to four messages, remembers them under the lease's name, and shows payload (attempt, failures).
CREATE TEMPORARY TABLE got (name text, n int, message_id bigint, transaction_id text, lease uuid);
CREATE FUNCTION pg_temp.take(called text, queue text) RETURNS TABLE (delivered text) LANGUAGE sql AS $$
  WITH popped AS (SELECT * FROM queen_pop(queue, 'g', batch => 4, partitions => 9, subscription_mode => 'all')),
       kept AS (INSERT INTO got SELECT called, payload::int, message_id, transaction_id, lease_id FROM popped)
  SELECT string_agg(format('%s (%s, %s)', payload, delivery_attempt, failures), ', ' ORDER BY payload::int) FROM popped;
$$;
CREATE FUNCTION pg_temp.lease(called text) RETURNS uuid LANGUAGE sql AS
  'SELECT lease FROM got WHERE name = called LIMIT 1';
CREATE FUNCTION pg_temp.ids(called text, numbers int[]) RETURNS bigint[] LANGUAGE sql AS
  'SELECT array_agg(message_id ORDER BY message_id) FROM got WHERE name = called AND n = ANY (numbers)';
-- say LEASE NUMBERS STATUS: settled, already, dead_lettered, released; or the code of the refusal. No numbers: everything.
CREATE FUNCTION pg_temp.say(called text, numbers int[], status text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE answer text;
BEGIN
  SELECT format('settled %s, already %s, dead %s, released %s', a.settled, a.already, a.dead_lettered, a.lease_released) INTO answer
  FROM queen_ack(pg_temp.lease(called), CASE WHEN numbers IS NOT NULL THEN pg_temp.ids(called, numbers) END, status,
                 error => 'because', delay => CASE WHEN status IN ('failed', 'retry') THEN interval '0' END) AS a;
  RETURN answer;
EXCEPTION WHEN OTHERS THEN RETURN SQLSTATE;
END $$;

-- In order. The failure of the second message ends the lease, and is charged once.
SELECT retry_limit FROM queen_configure('q', retry_limit => 1);
SELECT count(*) FROM queen_push_batch('q', '{1,2,3,4}', transaction_ids => '{a,b,c,d}');
SELECT pg_temp.take('one', 'q');
SELECT pg_temp.say('one', '{1}', 'completed');
SELECT pg_temp.say('one', '{2}', 'failed');
SELECT pg_temp.say('one', '{2}', 'failed') FROM generate_series(1, 2);
SELECT pg_temp.say('one', NULL, 'failed');
SELECT settled, already FROM queen_ack(pg_temp.lease('one'), transaction_ids => ARRAY['b'], status => 'failed', delay => '1 h');
-- Another status, and what the lease gave back without a word of it.
SELECT numbers, status, pg_temp.say('one', numbers, status)
FROM (VALUES ('{1}'::int[], 'failed'), ('{2}', 'completed'), ('{2}', 'retry'), ('{2}', 'dead_letter'), ('{3}', 'failed'), ('{2,3}', 'failed')) AS v (numbers, status);
-- While another consumer holds them, and when it has exhausted the message.
SELECT pg_temp.take('two', 'q');
SELECT pg_temp.say('one', '{2}', 'failed');
SELECT pg_temp.say('one', '{2}', 'completed');
SELECT pg_temp.say('two', '{2,3}', 'failed');
SELECT pg_temp.say('two', '{2,3}', 'failed');
SELECT pg_temp.say('two', NULL, 'failed');
SELECT pg_temp.say('two', '{2}', 'dead_letter');
SELECT count(*) AS dead, max(failures) AS failures FROM queen_dead_letters;
SELECT pg_temp.take('three', 'q');
SELECT pg_temp.say('three', NULL, 'retry');
SELECT pg_temp.say('three', NULL, 'retry');
SELECT pg_temp.take('four', 'q');
SELECT pg_temp.say('three', '{3,4}', 'retry');
SELECT pg_temp.say('three', '{4}', 'failed');

-- A mixed batch, of which a part is repeated with the statuses of the first time, and then with others.
SELECT outcome FROM queen_settle(pg_temp.lease('four'), '[{"transactionId": "c", "status": "dead_letter"}, {"transactionId": "d", "status": "retry"}]');
SELECT transaction_id, outcome FROM queen_settle(pg_temp.lease('four'), '[{"transactionId": "d", "status": "retry"}, {"transactionId": "c", "status": "dead_letter"}]');
SELECT queen_settle(pg_temp.lease('four'), '[{"transactionId": "c", "status": "failed"}]');
SELECT queen_settle(pg_temp.lease('four'), '[{"transactionId": "c", "status": "completed"}]');

-- In a bundle, whose other operations are done.
SELECT r ->> 'success' AS success, x - 'index' - 'leaseId' - 'messageId' AS result
FROM queen_tx_commit(jsonb_build_array(
    jsonb_build_object('type', 'ack', 'leaseId', pg_temp.lease('four'), 'transactionId', 'd', 'status', 'retry'),
    jsonb_build_object('type', 'ack', 'leaseId', pg_temp.lease('two'), 'transactionId', 'b', 'status', 'failed'),
    jsonb_build_object('type', 'push', 'queue', 'results', 'payload', 1, 'transactionId', 'r'))) AS r, jsonb_array_elements(r -> 'results') AS x;
SELECT queen_tx_commit(jsonb_build_array(
    jsonb_build_object('type', 'ack', 'leaseId', pg_temp.lease('four'), 'transactionId', 'd', 'status', 'failed'))) ->> 'reason' AS reason;

-- What a savepoint has undone was not said. In one transaction, it may be said again at once.
SELECT pg_temp.take('five', 'q');
BEGIN;
SAVEPOINT before;
SELECT pg_temp.say('five', '{4}', 'retry');
ROLLBACK TO before;
SELECT pg_temp.say('five', '{4}', 'failed');
SELECT pg_temp.say('five', '{4}', 'failed');
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT pg_temp.say('five', '{4}', 'failed');
COMMIT;
SELECT pg_temp.say('five', '{4}', 'retry');

-- A repetition writes nothing.
SELECT count(*) AS states, max(revision) AS last FROM queen_mq.progress \gset
SELECT pg_temp.say('five', '{4}', 'failed');
SELECT count(*) = :states AND max(revision) = :last AS is_as_before FROM queen_mq.progress;

-- A lease over several partitions gives back one and keeps the other.
SELECT (SELECT count(*) FROM queen_push_batch('p', '{1}', 'a')) + (SELECT count(*) FROM queen_push_batch('p', '{2}', 'b')) AS pushed;
SELECT pg_temp.take('six', 'p');
SELECT pg_temp.say('six', '{1}', 'failed');
SELECT pg_temp.say('six', '{1}', 'failed');
SELECT pg_temp.say('six', '{2}', 'completed');
SELECT pg_temp.say('six', NULL, 'failed');

-- Without order.
SELECT retry_limit FROM queen_configure('u', ordering => 'none', retry_limit => 0);
SELECT count(*) FROM queen_push_batch('u', '{1,2,3,4}');
SELECT pg_temp.take('seven', 'u');
SELECT pg_temp.say('seven', numbers, status)
FROM (VALUES ('{1}'::int[], 'failed'), ('{2}', 'retry'), ('{3}', 'dead_letter')) AS v (numbers, status);
SELECT numbers, status, pg_temp.say('seven', numbers, status)
FROM (VALUES ('{1}'::int[], 'failed'), ('{2}', 'retry'), ('{3}', 'dead_letter'), ('{1}', 'dead_letter'), ('{3}', 'failed'), ('{2}', 'failed'), ('{1}', 'completed')) AS v (numbers, status);
SELECT pg_temp.say('seven', '{4}', 'completed');
SELECT pg_temp.say('seven', NULL, 'failed');

-- The group is gone: what the lease had said stands.
SELECT queen_unsubscribe('u', 'g'), queen_unsubscribe('p', 'g');
SELECT pg_temp.say('six', '{1}', 'failed');
SELECT pg_temp.say('seven', '{2}', 'retry');
