-- Settling: what each status does, budgets, dead letters, and repeated acks.
\set VERBOSITY sqlstate
\pset footer off
\pset null (null)

-- deliver QUEUE GROUP: pops everything, shows it as payload (attempt), and returns the lease.
CREATE TEMPORARY TABLE got (consumer_group text, payload jsonb, message_id bigint, transaction_id text, attempt int, lease uuid);
CREATE FUNCTION pg_temp.deliver(queue text, worker text) RETURNS TABLE (delivered text, lease uuid) LANGUAGE sql AS $$
  DELETE FROM got;
  INSERT INTO got SELECT worker, payload, message_id, transaction_id, delivery_attempt, lease_id
  FROM queen_pop(queue, worker, batch => 10, subscription_mode => 'all');
  SELECT string_agg(format('%s (%s)', payload, attempt), ', ' ORDER BY message_id), max(lease::text)::uuid FROM got;
$$;
CREATE FUNCTION pg_temp.id(n int) RETURNS bigint LANGUAGE sql AS 'SELECT message_id FROM got WHERE payload = to_jsonb(n)';

SELECT retry_limit FROM queen_configure('settle', retry_limit => 1);
SELECT count(*) FROM generate_series(1, 4) AS n, queen_push('settle', to_jsonb(n), transaction_id => 't' || n);

-- An ack settles what it names. The last one releases the lease. Repeating it does no harm.
SELECT * FROM pg_temp.deliver('settle', 'ack') \gset
SELECT :'delivered' AS delivered;
SELECT * FROM queen_ack(:'lease', message_ids => ARRAY[pg_temp.id(1), pg_temp.id(1)]);
SELECT * FROM queen_ack(:'lease', transaction_ids => ARRAY['t3']);
SELECT * FROM queen_ack(:'lease', transaction_ids => ARRAY['t3', 't4']);
SELECT * FROM queen_ack(:'lease');
SELECT * FROM queen_ack(:'lease');
SELECT delivered FROM pg_temp.deliver('settle', 'ack');

-- failed: the lease ends. The message and those after it come back in order; completed ones do not.
-- Only the named message is charged: its second failure exhausts it, and the others are delivered.
SELECT * FROM pg_temp.deliver('settle', 'fail') \gset
SELECT * FROM queen_ack(:'lease', message_ids => ARRAY[pg_temp.id(3)]);
SELECT * FROM queen_ack(:'lease', message_ids => ARRAY[pg_temp.id(2)], status => 'failed', error => 'first');
SELECT queue, consumer_group, pending, in_flight, retrying, dead_letters FROM queen_groups WHERE consumer_group = 'fail';
SELECT * FROM pg_temp.deliver('settle', 'fail') \gset
SELECT :'delivered' AS delivered;
SELECT * FROM queen_ack(:'lease', message_ids => ARRAY[pg_temp.id(1)]);
SELECT * FROM queen_ack(:'lease', message_ids => ARRAY[pg_temp.id(2)], status => 'failed', error => 'second');
SELECT queue, consumer_group, partition, transaction_id, payload, error, failures, deliveries FROM queen_dead_letters;
SELECT delivered FROM pg_temp.deliver('settle', 'fail');

-- retry: the message comes back without a charge, however often.
SELECT * FROM pg_temp.deliver('settle', 'retry') \gset
SELECT * FROM queen_ack(:'lease', status => 'retry');
SELECT * FROM pg_temp.deliver('settle', 'retry') \gset
SELECT * FROM queen_ack(:'lease', status => 'retry');
SELECT * FROM pg_temp.deliver('settle', 'retry') \gset
SELECT :'delivered' AS delivered;

-- dead_letter: the message is dead at once, and the lease goes on for the others.
SELECT * FROM queen_ack(:'lease', transaction_ids => ARRAY['t1'], status => 'dead_letter', error => 'malformed');
SELECT * FROM queen_ack(:'lease', transaction_ids => ARRAY['t2']);
SELECT transaction_id, error, failures FROM queen_dead_letters WHERE consumer_group = 'retry';

-- Different statuses in one call.
SELECT * FROM pg_temp.deliver('settle', 'mixed') \gset
SELECT transaction_id, partition, outcome FROM queen_settle(:'lease', '[
  {"transactionId": "t4", "status": "completed"}, {"transactionId": "t2", "status": "failed", "error": "e"},
  {"transactionId": "t1", "status": "completed"}, {"transactionId": "t3", "status": "dead_letter"}]') ORDER BY 1;
SELECT transaction_id, outcome FROM queen_settle(:'lease', '[{"transactionId": "t1", "status": "completed"}]');
SELECT delivered FROM pg_temp.deliver('settle', 'mixed');

-- on_exhausted => drop, and a delay before the retry.
SELECT retry_limit, on_exhausted FROM queen_configure('drop', retry_limit => 0, on_exhausted => 'drop');
SELECT status FROM queen_push('drop', '1');
SELECT * FROM pg_temp.deliver('drop', 'g') \gset
SELECT outcome FROM queen_settle(:'lease', jsonb_build_array(jsonb_build_object('messageId', pg_temp.id(1), 'status', 'failed')));
SELECT pending, dead_letters FROM queen_groups WHERE queue = 'drop';
SELECT retry_delay FROM queen_configure('later', retry_delay => '100 ms');
SELECT status FROM queen_push('later', '1');
SELECT * FROM pg_temp.deliver('later', 'g') \gset
SELECT settled, lease_released FROM queen_ack(:'lease', status => 'failed');
SELECT pending, in_flight, retrying FROM queen_groups WHERE queue = 'later';
SELECT delivered FROM pg_temp.deliver('later', 'g');
SELECT payload, delivery_attempt FROM queen_pop('later', 'g', wait => '5 s');

-- An extension never shortens.
SELECT * FROM pg_temp.deliver('settle', 'long') \gset
SELECT queen_extend(:'lease', '10 min') > clock_timestamp() + '9 min' AS longer;
SELECT queen_extend(:'lease', '1 s') > clock_timestamp() + '9 min' AS still;

-- An ack that a savepoint has undone can be made again.
BEGIN;
SAVEPOINT before;
SELECT settled FROM queen_ack(:'lease');
ROLLBACK TO SAVEPOINT before;
SELECT settled FROM queen_ack(:'lease', transaction_ids => ARRAY['t1']);
COMMIT;
SELECT settled, already FROM queen_ack(:'lease', transaction_ids => ARRAY['t1', 't2']);

-- Refused with 22023, or with QN004 for a message that the lease does not hold.
SELECT queen_ack(:'lease', status => 'done');
SELECT queen_ack(:'lease', message_ids => '{}');
SELECT queen_ack(:'lease', message_ids => ARRAY[NULL]::bigint[]);
SELECT queen_ack(:'lease', message_ids => ARRAY[1], transaction_ids => ARRAY['t3']);
SELECT queen_ack(:'lease', message_ids => ARRAY[1]);
SELECT queen_ack(:'lease', transaction_ids => ARRAY['absent']);
SELECT queen_ack(:'lease', partition => 'elsewhere');
SELECT queen_settle(:'lease', '[]');
SELECT queen_settle(:'lease', '{}');
SELECT queen_settle(:'lease', '[{"transactionId": "t3"}]');
SELECT queen_settle(:'lease', '[{"transactionId": "t3", "status": "completed", "note": 1}]');
SELECT queen_settle(:'lease', '[{"transactionId": "t3", "status": "completed"}, {"transactionId": "t3", "status": "failed"}]');
SELECT queen_extend(:'lease', '0');
SELECT queen_extend(:'lease', '13 h');
SELECT settled FROM queen_ack(:'lease');

-- In JSON a message id is a number, or its digits as a string. Nothing else is one.
SELECT message_id AS id FROM queen_push('digits', '1') \gset
SELECT message_id AS other FROM queen_push('digits', '2') \gset
SELECT lease_id AS lease FROM queen_pop('digits', batch => 2) LIMIT 1 \gset
SELECT outcome FROM queen_settle(:'lease', jsonb_build_array(jsonb_build_object('messageId', :'id'::text, 'status', 'completed')));
SELECT outcome FROM queen_settle(:'lease', jsonb_build_array(jsonb_build_object('messageId', :id, 'status', 'completed')));
SELECT queen_tx_commit(jsonb_build_array(jsonb_build_object('type', 'ack', 'leaseId', :'lease', 'messageId', :'other'::text))) ->> 'success' AS success;
SELECT queen_settle(:'lease', '[{"messageId": "1 ", "status": "completed"}]');
SELECT queen_settle(:'lease', '[{"messageId": "-1", "status": "completed"}]');
SELECT queen_settle(:'lease', '[{"messageId": "", "status": "completed"}]');
SELECT queen_settle(:'lease', '[{"messageId": "9223372036854775808", "status": "completed"}]');
SELECT queen_settle(:'lease', '[{"messageId": 9223372036854775808, "status": "completed"}]');
SELECT queen_settle(:'lease', '[{"messageId": 1.0, "status": "completed"}]');
SELECT queen_settle(:'lease', '[{"messageId": true, "status": "completed"}]');
SELECT queen_settle(:'lease', '[{"messageId": null, "status": "completed"}]');

-- A delay of the call takes the place of the queue's: a longer one, a shorter one, and one for a retry.
SELECT retry_delay, retry_limit FROM queen_configure('wait', retry_delay => '1 h', retry_limit => 9);
SELECT count(*) FROM queen_push_batch('wait', ARRAY['1', '2']::jsonb[]);
SELECT settled FROM queen_ack((SELECT lease_id FROM queen_pop('wait')), status => 'failed', delay => '0');
SELECT settled FROM queen_ack((SELECT lease_id FROM queen_pop('wait')), status => 'retry', delay => '1 s');
SELECT count(*) AS too_early FROM queen_pop('wait');
SELECT payload, delivery_attempt, failures, lease_id FROM queen_pop('wait', wait => '5 s') \gset
SELECT :'payload' AS payload, :delivery_attempt AS delivery_attempt, :failures AS failures;
SELECT settled FROM queen_ack(:'lease_id', status => 'retry', delay => '2 h');
SELECT retrying, queen_seek('wait', NULL, 'start') FROM queen_groups WHERE queue = 'wait';
-- In order, what comes back waits as long as that of its messages that waits longest.
SELECT min(lease_id::text) AS lease, min(message_id) AS first FROM queen_pop('wait', batch => 2) \gset
SELECT outcome FROM queen_settle(:'lease', jsonb_build_array(
    jsonb_build_object('messageId', :first, 'status', 'failed', 'delayMs', 0),
    jsonb_build_object('messageId', :first + 1, 'status', 'retry', 'delayMs', 1000.5)));
SELECT count(*) AS too_early FROM queen_pop('wait');
SELECT count(*) FROM queen_pop('wait', batch => 2, wait => '5 s');
-- Without order, each message waits for itself; in a bundle, too.
SELECT ordering FROM queen_configure('each', ordering => 'none', retry_delay => '1 h');
SELECT count(*) FROM queen_push_batch('each', ARRAY['1', '2']::jsonb[]);
SELECT min(lease_id::text) AS lease, min(message_id) AS first FROM queen_pop('each', batch => 2) \gset
SELECT queen_tx_commit(jsonb_build_array(
    jsonb_build_object('type', 'ack', 'leaseId', :'lease', 'messageId', :first, 'status', 'failed', 'delayMs', 0),
    jsonb_build_object('type', 'ack', 'leaseId', :'lease', 'messageId', :first + 1, 'status', 'retry', 'delayMs', 3600000))) ->> 'success' AS success;
SELECT payload FROM queen_pop('each', batch => 2);
-- Refused: with another status, or out of range; and one message with two delays.
SELECT queen_ack(:'lease', delay => '1 s');
SELECT queen_ack(:'lease', status => 'dead_letter', delay => '1 s');
SELECT queen_ack(:'lease', status => 'retry', delay => '-1 s');
SELECT queen_ack(:'lease', status => 'retry', delay => '367 days');
SELECT queen_settle(:'lease', '[{"messageId": 1, "status": "completed", "delayMs": 1}]');
SELECT queen_settle(:'lease', '[{"messageId": 1, "status": "retry", "delayMs": -1}]');
SELECT queen_settle(:'lease', '[{"messageId": 1, "status": "retry", "delayMs": "1"}]');
SELECT queen_settle(:'lease', jsonb_build_array(
    jsonb_build_object('messageId', :first, 'status', 'retry', 'delayMs', 1),
    jsonb_build_object('messageId', :first, 'status', 'retry', 'delayMs', 2)));
SELECT queen_tx_commit('[{"type": "push", "queue": "each", "payload": 1, "delayMs": 1}]');
