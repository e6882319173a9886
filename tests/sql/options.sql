-- What the options of a queue do: max_deliveries, max_depth, delay, retention, completed_retention.
\set VERBOSITY sqlstate
\pset footer off
\pset null (null)
\t on

-- Options are merged, and can be reset one by one or all at once. A value out of range is refused.
SELECT max_deliveries, delay, retention, completed_retention, max_depth, ordering FROM queen_configure('o');
SELECT max_deliveries, delay, retention, completed_retention, max_depth
FROM queen_configure('o', max_deliveries => 2, delay => '1 s', retention => '1 h', completed_retention => '1 min', max_depth => 3);
SELECT max_deliveries, delay, retention, completed_retention, max_depth
FROM queen_configure('o', max_depth => 4, unset => ARRAY['max_deliveries', 'retention']);
SELECT options - 'ordering' FROM queen_queues WHERE queue = 'o';
SELECT max_deliveries, delay, retention, completed_retention, max_depth FROM queen_configure('o', reset => true);
SELECT queen_configure('o', max_deliveries => 0);
SELECT queen_configure('o', max_depth => 0);
SELECT queen_configure('o', retention => '0');
SELECT queen_configure('o', completed_retention => '-1 s');
SELECT queen_configure('o', delay => '-1 s');
SELECT queen_configure('o', ordering => 'random');
SELECT queen_configure('o', max_depth => 1, unset => ARRAY['max_depth']);

-- A message that is delivered max_deliveries times without an outcome becomes a dead letter, and the
-- next messages are delivered. A message that fails within its budget of failures is not affected.
SELECT max_deliveries FROM queen_configure('o', max_deliveries => 2);
SELECT count(*) FROM queen_push('o', '1') a, queen_push('o', '2') b;
SELECT payload, delivery_attempt FROM queen_pop('o', 'g', lease_time => '1 ms', subscription_mode => 'all');
SELECT pg_sleep(0.002);
SELECT payload, delivery_attempt FROM queen_pop('o', 'g', lease_time => '1 ms');
SELECT pg_sleep(0.002);
SELECT payload, delivery_attempt, lease_id FROM queen_pop('o', 'g') \gset
SELECT :'payload', :delivery_attempt;
SELECT payload, error, failures, deliveries FROM queen_dead_letters WHERE queue = 'o';
SELECT * FROM queen_ack(:'lease_id', status => 'failed');
SELECT payload, delivery_attempt, lease_id FROM queen_pop('o', 'g') \gset
SELECT :'payload', :delivery_attempt;
SELECT * FROM queen_ack(:'lease_id', status => 'failed', error => 'no');
-- Nothing is left to deliver, and the pop that finds this settles the exhausted message.
SELECT count(*) FROM queen_pop('o', 'g');
SELECT payload, error, failures, deliveries FROM queen_dead_letters WHERE queue = 'o' ORDER BY dead_letter_id;
SELECT pending, in_flight, retrying, dead_letters FROM queen_groups WHERE queue = 'o';
-- With on_exhausted 'drop' the message is dropped.
SELECT on_exhausted FROM queen_configure('o', on_exhausted => 'drop', max_deliveries => 1);
SELECT count(*) FROM queen_push('o', '3');
SELECT payload FROM queen_pop('o', 'g', lease_time => '1 ms');
SELECT pg_sleep(0.002);
SELECT count(*) FROM queen_pop('o', 'g');
SELECT pending, dead_letters FROM queen_groups WHERE queue = 'o';

-- max_depth: a push is refused when so many messages are pending for the slowest group or, without groups, in the log.
SELECT max_depth FROM queen_configure('full', max_depth => 2);
SELECT status FROM queen_push('full', '1');
SELECT status FROM queen_push('full', '2');
SELECT status FROM queen_push('full', '3');
SELECT count(*) FROM queen_push_batch('full', ARRAY['3']::jsonb[]);
SELECT queen_tx_commit('[{"type": "push", "queue": "full", "payload": 3}]') - 'error';
SELECT count(*) FROM queen_pop('full', batch => 2, auto_ack => true);
SELECT pg_sleep(0.6);
SELECT status FROM queen_push('full', '3');

-- delay: a message is not delivered before it is this old, and is delivered after that.
SELECT delay FROM queen_configure('slow', delay => '500 ms');
SELECT count(*) FROM queen_push('slow', '1', 'a') a, queen_push('slow', '2', 'b') b;
SELECT count(*) FROM queen_pop('slow', 'g', batch => 10, partitions => 10, subscription_mode => 'all');
SELECT pg_sleep(0.6);
SELECT count(*) FROM queen_push('slow', '3', 'a');
SELECT payload FROM queen_pop('slow', 'g', batch => 10, partitions => 10, auto_ack => true) ORDER BY message_id;
SELECT count(*) FROM queen_pop('slow', 'g', batch => 10, partitions => 10);
SELECT pg_sleep(0.6);
SELECT payload FROM queen_pop('slow', 'g', batch => 10, partitions => 10, auto_ack => true);
-- A delay that is set later also applies to messages that are there, and they are not lost.
SELECT count(*) FROM queen_push('slow', '4', 'a');
SELECT delay FROM queen_configure('slow', delay => '1 h');
SELECT count(*) FROM queen_pop('slow', 'g');
SELECT delay FROM queen_configure('slow', unset => ARRAY['delay']);
SELECT payload FROM queen_pop('slow', 'g', auto_ack => true);

-- completed_retention: a message is deleted when every group has settled it, and never while it is held.
SELECT completed_retention FROM queen_configure('kept', completed_retention => '1 ms');
SELECT queen_subscribe('kept', 'x', 'all'), queen_subscribe('kept', 'y', 'all');
SELECT count(*) FROM queen_push('kept', '1', 'a') a, queen_push('kept', '2', 'a') b, queen_push('kept', '3', 'b') c;
SELECT pg_sleep(0.01);
SELECT count(*) FROM queen_pop('kept', 'x', batch => 10, partitions => 10, auto_ack => true);
SELECT removed FROM queen_sweep() WHERE task = 'messages';
SELECT lease_id FROM queen_pop('kept', 'y', batch => 10, partition => 'a') LIMIT 1 \gset
SELECT removed FROM queen_sweep() WHERE task = 'messages';
SELECT settled FROM queen_ack(:'lease_id');
SELECT removed FROM queen_sweep() WHERE task = 'messages';
SELECT consumer_group, pending FROM queen_groups WHERE queue = 'kept' ORDER BY 1;
SELECT depth, partitions, groups FROM queen_queues WHERE queue = 'kept';
SELECT payload FROM queen_pop('kept', 'y', batch => 10, partitions => 10, auto_ack => true);
SELECT removed FROM queen_sweep() WHERE task = 'messages';
-- Without a group no message is settled.
SELECT completed_retention FROM queen_configure('alone', completed_retention => '1 ms');
SELECT count(*) FROM queen_push('alone', '1');
SELECT pg_sleep(0.01);
SELECT removed FROM queen_sweep() WHERE task = 'messages';
SELECT depth FROM queen_queues WHERE queue = 'alone';

-- retention: old messages are deleted in any state except in a lease; fewer messages are pending then.
SELECT retention FROM queen_configure('old', retention => '30 ms');
SELECT queen_subscribe('old', 'g', 'all'), queen_subscribe('old', 'idle', 'all');
SELECT count(*) FROM queen_push('old', '1', 'a') a, queen_push('old', '2', 'b') b, queen_push('old', '3', 'c') c;
SELECT lease_id FROM queen_pop('old', 'g', partition => 'a') \gset held_
SELECT lease_id FROM queen_pop('old', 'g', partition => 'b') \gset
SELECT settled FROM queen_ack(:'lease_id', status => 'failed');
SELECT pg_sleep(0.05);
SELECT removed FROM queen_sweep() WHERE task = 'messages';
SELECT count(*) FROM queen_push('old', '4', 'c');
SELECT consumer_group, pending, in_flight, retrying FROM queen_groups WHERE queue = 'old' ORDER BY 1;
SELECT payload FROM queen_messages WHERE queue = 'old' ORDER BY message_id;
SELECT settled FROM queen_ack(:'held_lease_id');
SELECT payload FROM queen_pop('old', 'g', batch => 10, partitions => 10, auto_ack => true);
SELECT payload FROM queen_pop('old', 'idle', batch => 10, partitions => 10, auto_ack => true) ORDER BY message_id;
SELECT consumer_group, pending FROM queen_groups WHERE queue = 'old' ORDER BY 1;

-- In the views, options do not depend on the session's settings: durations are in ISO 8601, numbers in full.
SELECT queue FROM queen_configure('iso', lease_time => '1 h 0.5 s', retry_backoff => 1.2345678901234567, retention => '1 year 2 mons 3 days 4 h', max_depth => 9223372036854775807, dedup_window => '0');
SELECT queen_subscribe('iso', 'g'), queen_subscribe('iso', 'own');
SELECT consumer_group FROM queen_configure_group('iso', 'own', retry_backoff => 3.3333333333333335, lease_time => '1 day -13 h');
SET IntervalStyle = 'postgres_verbose';
SET extra_float_digits = -10;
SELECT options FROM queen_queues WHERE queue = 'iso';
SELECT consumer_group, options FROM queen_groups WHERE queue = 'iso' ORDER BY 1;
SELECT options FROM queen_groups WHERE queue = 'o';
RESET IntervalStyle;
RESET extra_float_digits;
