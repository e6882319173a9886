-- What became of a message, and which messages hold a partition up.
\set VERBOSITY sqlstate
\pset footer off
\pset null (null)
\set status 'SELECT consumer_group, message_id, state, delivery_attempt AS attempt, lease_expires_at > now() AS leased, due_at > now() AS later, error FROM queen_message_status'

-- Nothing is known.
:status('orders', 't1');
-- A queue without groups, and a message that is pushed with a delay, with and without a group.
SELECT message_id AS first FROM queen_push('orders', '1', transaction_id => 't1') \gset
SELECT consumer_group, message_id = :first AS that_one, state, delivery_attempt FROM queen_message_status('orders', 't1');
:status('orders', 't1', 'other');
SELECT status FROM queen_push('orders', '0', transaction_id => 'later', delay => '1 h');
:status('orders', 'later');
SELECT queen_subscribe('orders', 'billing', 'all'), queen_subscribe('orders', 'shipping', 'all');
:status('orders', 'later');
SELECT status FROM queen_schedule('orders', 'k', '0', delay => '2 h', transaction_id => 'timer');
SELECT status FROM queen_every('orders', 'daily', '@yearly', '0');
:status('orders', 'timer');
SELECT state, due_at > now() AS later FROM queen_message_status('orders', (SELECT 'daily@' || to_char(next_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') FROM queen_schedules));

-- One row for each group that the message is for. A group that begins later has none.
SELECT queen_subscribe('orders', 'newcomer', 'new'), queen_subscribe('orders', 'today', start_at => now() + interval '1 h');
SELECT consumer_group, state, delivery_attempt FROM queen_message_status('orders', 't1');
SELECT lease_id FROM queen_pop('orders', 'billing') \gset
SELECT consumer_group, state, delivery_attempt, lease_expires_at > now() AS leased, due_at FROM queen_message_status('orders', 't1');
SELECT consumer_group, partition, message_id = :first AS that_one, transaction_id, state, delivery_attempt, failures, last_error, due_at > now() AS later FROM queen_blocked;

-- A failure, at once and with a delay; a lease that runs out; a second failure without a text.
SELECT settled FROM queen_ack(:'lease_id', status => 'failed', error => 'no network');
SELECT consumer_group, state, delivery_attempt, lease_expires_at, due_at <= now() AS now, error FROM queen_message_status('orders', 't1');
SELECT state, delivery_attempt, failures, last_error, due_at <= now() AS now FROM queen_blocked;
SELECT lease_id FROM queen_pop('orders', 'billing', lease_time => '1 ms') \gset
SELECT pg_sleep(0.01);
SELECT state, delivery_attempt, error FROM queen_message_status('orders', 't1') WHERE consumer_group = 'billing';
SELECT state, delivery_attempt, failures, last_error, due_at <= now() AS now FROM queen_blocked;
SELECT lease_id FROM queen_pop('orders', 'billing') \gset
SELECT state, delivery_attempt, failures, last_error FROM queen_blocked;
SELECT settled FROM queen_ack(:'lease_id', status => 'failed', error => repeat('x', 2000), delay => '1 h');
SELECT state, delivery_attempt, length(error) AS error, due_at > now() AS later FROM queen_message_status('orders', 't1') WHERE consumer_group = 'billing';
SELECT state, delivery_attempt, failures, length(last_error) AS last_error, due_at > now() AS later FROM queen_blocked;

-- Completed; and a dead letter, which is replayed for its group alone.
SELECT lease_id FROM queen_pop('orders', 'shipping') \gset
SELECT settled FROM queen_ack(:'lease_id', status => 'dead_letter', error => 'no such street');
SELECT consumer_group, message_id = :first AS that_one, state, delivery_attempt, error FROM queen_message_status('orders', 't1') WHERE consumer_group = 'shipping';
SELECT r.message_id AS again FROM queen_dead_letters AS d, queen_dead_letter_replay(d.dead_letter_id) AS r \gset
SELECT consumer_group, message_id = :first AS that_one, message_id = :again AS again, state, error FROM queen_message_status('orders', 't1') WHERE consumer_group <> 'billing';
SELECT settled FROM queen_ack((SELECT lease_id FROM queen_pop('orders', 'shipping')));
SELECT consumer_group, message_id = :again AS again, state, delivery_attempt, error FROM queen_message_status('orders', 't1') WHERE consumer_group <> 'billing';
SELECT count(*) AS of_others FROM queen_pop('orders', 'newcomer');
SELECT state FROM queen_message_status('orders', 't1') WHERE consumer_group = 'newcomer';

-- What follows a failure in one batch: the one that failed, those before and behind it.
SELECT count(*) FROM queen_push_batch('batch', ARRAY['1', '2', '3', '4']::jsonb[], 'p', ARRAY['a', 'b', 'c', NULL]);
SELECT lease_id FROM queen_pop('batch', batch => 3) LIMIT 1 \gset
SELECT outcome FROM queen_settle(:'lease_id', '[{"transactionId": "a", "status": "completed"}, {"transactionId": "b", "status": "failed", "error": "bad"}]');
SELECT t, s.* FROM unnest(ARRAY['a', 'b', 'c']) AS t, LATERAL (SELECT consumer_group, state, delivery_attempt, error FROM queen_message_status('batch', t, 'p')) AS s;
-- A derived transaction_id tells its message, and no other partition's.
SELECT state, delivery_attempt FROM queen_messages AS m, queen_message_status('batch', m.transaction_id, 'p') WHERE payload = '4';
SELECT count(*) AS elsewhere FROM queen_messages AS m, queen_message_status('batch', m.transaction_id) WHERE payload = '4';
SELECT count(*) AS no_such_message FROM queen_message_status('batch', 'msg-5600000', 'p');
SELECT transaction_id, state, failures, last_error FROM queen_blocked WHERE queue = 'batch';
-- Popped one by one: what waits behind a leased head was delivered before, too.
SELECT payload, lease_id FROM queen_pop('batch') \gset
SELECT t, state, due_at > now() AS later, error FROM unnest(ARRAY['b', 'c']) AS t, queen_message_status('batch', t, 'p');
SELECT settled FROM queen_ack(:'lease_id');
SELECT transaction_id, state, delivery_attempt, failures, last_error, due_at <= now() AS now FROM queen_blocked WHERE queue = 'batch';
SELECT settled FROM queen_ack((SELECT lease_id FROM queen_pop('batch')));
SELECT count(*) AS free FROM queen_blocked WHERE queue = 'batch';

-- Without order: each message by itself, and no partition is held up.
SELECT ordering FROM queen_configure('free', ordering => 'none', retry_delay => '1 h');
SELECT count(*) FROM queen_push_batch('free', ARRAY['1', '2', '3', '4']::jsonb[], transaction_ids => ARRAY['a', 'b', 'c', 'd']);
SELECT lease_id FROM queen_pop('free', batch => 3) LIMIT 1 \gset
SELECT outcome FROM queen_settle(:'lease_id', '[{"transactionId": "a", "status": "completed"}, {"transactionId": "b", "status": "failed", "error": "bad"}]');
SELECT t, state, delivery_attempt, lease_expires_at > now() AS leased, due_at > now() AS later, error FROM unnest(ARRAY['a', 'b', 'c', 'd']) AS t, queen_message_status('free', t);
SELECT count(*) > 0 AS swept FROM queen_sweep(1000);
SELECT t, state, error FROM unnest(ARRAY['a', 'b', 'c', 'd']) AS t, queen_message_status('free', t);
SELECT count(*) AS blocked FROM queen_blocked WHERE queue = 'free';
-- A change of the ordering takes what was said along, both ways.
SELECT settled FROM queen_ack(:'lease_id', status => 'retry');
SELECT ordering FROM queen_configure('free', ordering => 'partition');
SELECT transaction_id, state, failures, last_error FROM queen_blocked WHERE queue = 'free';
SELECT ordering FROM queen_configure('free', ordering => 'none');
SELECT t, state, error FROM unnest(ARRAY['a', 'b', 'c', 'd']) AS t, queen_message_status('free', t);

-- max_deliveries: the dead letter says what the last failure said.
SELECT max_deliveries FROM queen_configure('crash', max_deliveries => 2);
SELECT count(*) FROM queen_push('crash', '1', transaction_id => 'x');
SELECT settled FROM queen_ack((SELECT lease_id FROM queen_pop('crash')), status => 'failed', error => 'out of memory');
SELECT count(*) FROM queen_pop('crash', lease_time => '1 ms');
SELECT pg_sleep(0.01);
SELECT count(*) FROM queen_pop('crash');
SELECT error FROM queen_dead_letters WHERE queue = 'crash';
SELECT state, delivery_attempt, error FROM queen_message_status('crash', 'x');

-- A transaction_id that was pushed again after the window: the newest message. A seek and a purge.
SELECT dedup_window FROM queen_configure('again', dedup_window => '1 ms');
SELECT queen_subscribe('again', 'g', 'all');
SELECT message_id AS first FROM queen_push('again', '1', transaction_id => 'x') \gset
SELECT settled FROM queen_ack((SELECT lease_id FROM queen_pop('again', 'g')));
SELECT state FROM queen_message_status('again', 'x');
SELECT pg_sleep(0.01);
SELECT message_id AS second FROM queen_push('again', '2', transaction_id => 'x') \gset
SELECT message_id = :second AS newest, state FROM queen_message_status('again', 'x');
SELECT pg_sleep(0.01);
SELECT status FROM queen_push('again', '3', transaction_id => 'x', delay => '1 h');
SELECT message_id, state FROM queen_message_status('again', 'x');
SELECT message_id AS fourth FROM queen_push('again', '4', transaction_id => 'y') \gset
SELECT settled FROM queen_ack((SELECT lease_id FROM queen_pop('again', 'g', batch => 9) LIMIT 1));
SELECT queen_seek('again', 'g', 'start');
SELECT state, delivery_attempt FROM queen_message_status('again', 'y');
SELECT queen_seek('again', 'g', 'end');
SELECT count(*) AS not_for_it FROM queen_message_status('again', 'y');
SELECT queen_purge('again');
SELECT count(*) AS purged FROM queen_message_status('again', 'y');

-- The caller's own transaction, and one that is rolled back.
BEGIN;
SELECT status FROM queen_push('own', '1', transaction_id => 'x');
SELECT state FROM queen_message_status('own', 'x');
SELECT payload FROM queen_pop('own');
SELECT state, delivery_attempt FROM queen_message_status('own', 'x');
SELECT state FROM queen_blocked WHERE queue = 'own';
ROLLBACK;
SELECT count(*) FROM queen_message_status('own', 'x');

-- Refused with 22023.
SELECT * FROM queen_message_status(NULL, 'x');
SELECT * FROM queen_message_status('orders', NULL);
SELECT * FROM queen_message_status('', 'x');
SELECT * FROM queen_message_status('orders', '');
SELECT * FROM queen_message_status('orders', repeat('x', 1025));
SELECT * FROM queen_message_status('orders', 'x', '');
SELECT count(*) FROM queen_message_status('orders', 'x', NULL);
