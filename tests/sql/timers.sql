-- Messages that enter the log later: timers, delayed pushes, and timers in a bundle.
\set VERBOSITY sqlstate
\pset footer off
\pset null (null)
\t on

CREATE FUNCTION pg_temp.read() RETURNS text LANGUAGE sql AS $$
  SELECT string_agg(format('%s %s %s', partition, transaction_id, payload), ', ' ORDER BY message_id)
  FROM queen_pop('t', batch => 100, partitions => 10, auto_ack => true) $$;

-- A key has one timer: a second call replaces it. The queue is created.
SELECT status, transaction_id FROM queen_schedule('t', 'k', '1', delay => '1 h', transaction_id => 'first');
SELECT status, transaction_id FROM queen_schedule('t', 'k', '2', deliver_at => now() - interval '1 day', transaction_id => 'second', partition => 'p', headers => '{"h": 1}');
SELECT queue, timer_key, partition, transaction_id, payload, headers, deliver_at < now() FROM queen_timers;
SELECT status, transaction_id LIKE 'timer-%' FROM queen_schedule('t', 'later', '3', delay => '1 h');
SELECT depth FROM queen_queues WHERE queue = 't';
-- Any pop of the queue moves due messages into the log, once, with the promised transaction_id.
SELECT transaction_id, payload, headers, partition, created_at > now() - interval '1 minute' AS fresh FROM queen_pop('t', batch => 10, auto_ack => true);
SELECT count(*) FROM queen_pop('t', batch => 10);
SELECT timer_key FROM queen_timers;
-- The sweep does so, too.
SELECT status FROM queen_schedule('t', 'swept', '4', delay => '0', transaction_id => 'swept');
SELECT removed FROM queen_sweep() WHERE task = 'timers';
SELECT removed FROM queen_sweep() WHERE task = 'timers';
SELECT pg_temp.read();
-- A cancelled timer is not delivered. A timer that does not exist cannot be cancelled.
SELECT queen_cancel('t', 'later'), queen_cancel('t', 'later'), queen_cancel('t', 'k'), queen_cancel('nothing', 'k');
SELECT count(*) FROM queen_timers;

-- A delayed push is scheduled. Its transaction_id is known while it waits and afterwards.
SELECT message_id, transaction_id, status FROM queen_push('t', '5', delay => '500 ms', transaction_id => 'd');
SELECT message_id, transaction_id, status FROM queen_push('t', '5', delay => '500 ms', transaction_id => 'd');
SELECT message_id, transaction_id LIKE 'delayed-%', status FROM queen_push('t', '6', delay => '500 ms');
SELECT timer_key, partition, payload FROM queen_timers ORDER BY payload;
SELECT pg_temp.read();
SELECT pg_sleep(0.6);
SELECT count(*), min(payload::int), max(payload::int) FROM queen_pop('t', batch => 10, auto_ack => true);
SELECT message_id IS NOT NULL, status FROM queen_push('t', '5', delay => '500 ms', transaction_id => 'd');
SELECT message_id IS NOT NULL, status FROM queen_push('t', '5', transaction_id => 'd');
SELECT status FROM queen_push('t', '7', delay => '0');
SELECT pg_temp.read() IS NOT NULL;
-- The id is pushed without delay while the first message waits for its own: the second is the duplicate.
SELECT status FROM queen_push('t', '8', delay => '1 ms', transaction_id => 'race');
SELECT status FROM queen_push('t', '9', transaction_id => 'race');
SELECT pg_sleep(0.01);
SELECT pg_temp.read();

-- A scheduled timer that is rolled back does not exist.
BEGIN;
SELECT queen_cancel('t', 'none'), status FROM queen_schedule('t', 'undone', '1', delay => '0');
ROLLBACK;
SELECT pg_temp.read(), count(*) FROM queen_timers;

-- A timer in a bundle is scheduled together with the rest, or not at all.
SELECT jsonb_path_query(queen_tx_commit('[{"type": "push", "queue": "t", "payload": 10, "transactionId": "b"}]', '[]',
  '[{"op": "schedule", "queue": "t", "timerKey": "b1", "payload": 11, "deliverAt": "2020-01-01T00:00:00Z", "transactionId": "b1"},
    {"op": "cancel", "queue": "t", "timerKey": "absent"}]'), '$.results[*]') - 'messageId';
SELECT queen_tx_commit('[{"type": "push", "queue": "t", "payload": 10, "transactionId": "b"}]', '[]',
  '[{"op": "schedule", "queue": "t", "timerKey": "b2", "payload": 12, "delayMs": 0}]') ->> 'reason';
SELECT status FROM queen_schedule('t', 'b3', '13', delay => '1 h', transaction_id => 'b3');
SELECT queen_tx_commit(timers => '[{"op": "cancel", "queue": "t", "timerKey": "b3"}]') #- '{results,0,deliverAt}';
SELECT timer_key FROM queen_timers;
SELECT pg_temp.read();

-- Calls that are refused.
SELECT queen_schedule('t', 'k', '1');
SELECT queen_schedule('t', 'k', '1', delay => '1 s', deliver_at => now());
SELECT queen_schedule('t', 'k', '1', delay => '-1 s');
SELECT queen_schedule('t', 'k', '1', delay => '400 days');
SELECT queen_schedule('t', 'k', '1', deliver_at => now() + interval '400 days');
SELECT queen_schedule('t', 'k', '1', deliver_at => 'infinity');
SELECT queen_schedule('t', '', '1', delay => '1 s');
SELECT queen_schedule('t', E'\x01', '1', delay => '1 s');
SELECT queen_schedule('t', 'k', NULL, delay => '1 s');
SELECT queen_push('t', '1', delay => '-1 s');
SELECT queen_tx_commit(timers => '[{"op": "schedule", "queue": "t", "timerKey": "k", "payload": 1}]');
SELECT queen_tx_commit(timers => '[{"op": "schedule", "queue": "t", "timerKey": "k", "payload": 1, "deliverAt": "soon"}]');
SELECT queen_tx_commit(timers => '[{"op": "cancel", "queue": "t", "timerKey": "k", "payload": 1}]');
SELECT queen_tx_commit(timers => '[{"op": "cancel", "queue": "t", "timerKey": "k"}, {"op": "cancel", "queue": "t", "timerKey": "k"}]');
SELECT queen_tx_commit(timers => '[{"op": "postpone", "queue": "t", "timerKey": "k"}]');
SET queen_mq.auto_create = off;
SELECT queen_schedule('unknown', 'k', '1', delay => '1 s');
SELECT queen_cancel('unknown', 'k');
RESET queen_mq.auto_create;
-- A removed queue loses its timers.
SELECT status FROM queen_schedule('t', 'gone', '1', delay => '1 h');
SELECT queen_delete_queue('t') > 0;
SELECT count(*) FROM queen_timers;
