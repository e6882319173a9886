-- The option delivery: with latest, a pop takes the newest message of a partition and completes the
-- older ones with it.
\set VERBOSITY sqlstate
\pset footer off
\pset null (null)

SELECT delivery, notify FROM queen_configure('q');
SELECT delivery, ordering FROM queen_configure('q', delivery => 'latest');
SELECT queen_configure('q', delivery => 'newest');

-- Of each partition one message, also where the batch is larger; from several partitions with one pop.
SELECT count(*) FROM queen_push_batch('q', ARRAY['1', '2', '3']::jsonb[], 'a');
SELECT count(*) FROM queen_push_batch('q', ARRAY['11', '12']::jsonb[], 'b');
SELECT queen_subscribe('q', 'new'), queen_subscribe('q', 'g', 'all');
SELECT pending, in_flight FROM queen_groups WHERE queue = 'q' ORDER BY consumer_group;
SELECT partition, payload, delivery_attempt FROM queen_pop('q', 'g', batch => 10, partition => 'a');
SELECT partition, payload FROM queen_pop('q', 'g', batch => 10, partitions => 10);
SELECT count(*) FROM queen_pop('q', 'g', batch => 10, partitions => 10);
SELECT pending, in_flight FROM queen_groups WHERE queue = 'q' AND consumer_group = 'g';
SELECT partition, messages FROM queen_leases WHERE queue = 'q' ORDER BY 1;
SELECT count(*) AS ended FROM (SELECT lease_id FROM queen_leases WHERE queue = 'q') l, queen_ack(l.lease_id) WHERE lease_released;
SELECT count(*) FROM queen_pop('q', 'g', batch => 10, partitions => 10);
SELECT pending, in_flight FROM queen_groups WHERE queue = 'q' AND consumer_group = 'g';
-- The log is as it was.
SELECT count(*) FROM queen_messages WHERE queue = 'q';

-- A newer message takes the place of one that failed; without one, it comes back. Failures are of the message.
SELECT count(*) FROM queen_push('q', '4', 'a');
SELECT lease_id FROM queen_pop('q', 'g') \gset
SELECT settled FROM queen_ack(:'lease_id', status => 'failed');
SELECT payload, delivery_attempt, failures, lease_id FROM queen_pop('q', 'g') \gset
SELECT :'payload' AS payload, :delivery_attempt AS attempt, :failures AS failures;
SELECT settled FROM queen_ack(:'lease_id', status => 'failed');
SELECT count(*) FROM queen_push('q', '5', 'a');
SELECT pending, retrying FROM queen_groups WHERE queue = 'q' AND consumer_group = 'g';
SELECT payload, delivery_attempt, failures, lease_id FROM queen_pop('q', 'g') \gset
SELECT :'payload' AS payload, :delivery_attempt AS attempt, :failures AS failures;
SELECT pending, retrying FROM queen_groups WHERE queue = 'q' AND consumer_group = 'g';
-- A message that was completed as older is not part of the lease.
SELECT queen_ack(:'lease_id', ARRAY[(SELECT message_id FROM queen_messages WHERE payload = '4')]);
SELECT settled FROM queen_ack(:'lease_id');
-- The delay after a failure holds up the newer message, too.
SELECT retry_delay FROM queen_configure('q', retry_delay => '1 h');
SELECT count(*) FROM queen_push('q', '6', 'a');
SELECT lease_id FROM queen_pop('q', 'g') \gset
SELECT settled FROM queen_ack(:'lease_id', status => 'failed');
SELECT count(*) FROM queen_push('q', '7', 'a');
SELECT count(*) FROM queen_pop('q', 'g');
SELECT retry_delay FROM queen_configure('q', unset => ARRAY['retry_delay']);
SELECT queen_seek('q', 'g', 'end', partition => 'a');
SELECT count(*) FROM queen_pop('q', 'g');
SELECT queen_seek('q', 'g', 'start');
SELECT partition, payload, delivery_attempt FROM queen_pop('q', 'g', batch => 10, partitions => 10, auto_ack => true) ORDER BY 1;
SELECT pending FROM queen_groups WHERE queue = 'q' AND consumer_group = 'g';

-- A lease that was given when the group got every message.
SELECT delivery FROM queen_configure('q', delivery => 'all');
SELECT count(*) FROM queen_push_batch('q', ARRAY['21', '22', '23']::jsonb[], 'c', ARRAY['21', '22', '23']);
SELECT payload FROM queen_pop('q', 'g', batch => 10, partition => 'c');
SELECT lease_id FROM queen_leases WHERE queue = 'q' AND partition = 'c' \gset
SELECT delivery FROM queen_configure('q', delivery => 'latest');
SELECT pending, in_flight FROM queen_groups WHERE queue = 'q' AND consumer_group = 'g';
SELECT transaction_id, outcome FROM queen_settle(:'lease_id', '[{"transactionId": "23", "status": "completed"}, {"transactionId": "21", "status": "failed"}]');
-- 21 and 22 came back, and 23 is newer and was delivered: nothing is left.
SELECT count(*) FROM queen_pop('q', 'g');
SELECT pending FROM queen_groups WHERE queue = 'q' AND consumer_group = 'g';

-- Dead letters. One that is replayed is as old as the message that it was.
SELECT retry_limit FROM queen_configure('d', delivery => 'latest', retry_limit => 0);
SELECT count(*) FROM queen_push('d', '1');
SELECT lease_id FROM queen_pop('d', 'g', subscription_mode => 'all') \gset
SELECT dead_lettered FROM queen_ack(:'lease_id', status => 'failed');
SELECT count(*) FROM queen_dead_letters d, queen_dead_letter_replay(d.dead_letter_id) WHERE d.queue = 'd';
SELECT payload, lease_id FROM queen_pop('d', 'g') \gset
SELECT :'payload' AS payload;
SELECT dead_lettered FROM queen_ack(:'lease_id', status => 'failed');
SELECT count(*) FROM queen_push('d', '2');
SELECT count(*) FROM queen_dead_letters d, queen_dead_letter_replay(d.dead_letter_id) WHERE d.queue = 'd';
SELECT payload FROM queen_pop('d', 'g', batch => 10);
SELECT pending, dead_letters FROM queen_groups WHERE queue = 'd';

-- max_deliveries, max_depth and a delay.
SELECT max_deliveries FROM queen_configure('o', delivery => 'latest', max_deliveries => 1, max_depth => 2);
SELECT queen_subscribe('o', 'g', 'all');
SELECT count(*) FROM generate_series(1, 5) AS n, queen_push('o', to_jsonb(n), 'a');
SELECT payload FROM queen_pop('o', 'g', lease_time => '1 ms');
SELECT pg_sleep(0.01);
SELECT count(*) FROM queen_pop('o', 'g');
SELECT payload, deliveries FROM queen_dead_letters WHERE queue = 'o';
SELECT count(*) FROM queen_push('o', '6', 'a') x, queen_push('o', '7', 'b') y;
SELECT pg_sleep(0.1);
SELECT queen_push('o', '8', 'c');
SELECT delay FROM queen_configure('y', delivery => 'latest', delay => '1 s');
SELECT count(*) FROM queen_push_batch('y', ARRAY['1', '2']::jsonb[]);
SELECT pg_sleep(1.1);
SELECT count(*) FROM queen_push('y', '3');
SELECT payload FROM queen_pop('y', 'g', batch => 9, subscription_mode => 'all', auto_ack => true);
SELECT delay FROM queen_configure('y', unset => ARRAY['delay']);
SELECT payload FROM queen_pop('y', 'g', batch => 9, auto_ack => true);

-- Queue mode, and a purge.
SELECT count(*) FROM queen_push_batch('y', ARRAY['4', '5']::jsonb[]);
SELECT payload, consumer_group FROM queen_pop('y', batch => 9);
SELECT queen_purge('y');
SELECT consumer_group, pending, in_flight FROM queen_groups WHERE queue = 'y' ORDER BY 1;

-- Not without order, whichever of the two comes later.
SELECT queen_configure('q', ordering => 'none');
SELECT queen_configure('n', ordering => 'none', delivery => 'latest');
SELECT ordering, delivery FROM queen_configure('n', ordering => 'none');
SELECT queen_configure('n', delivery => 'latest');
SELECT ordering, delivery FROM queen_configure('n', delivery => 'latest', unset => ARRAY['ordering']);
SELECT queen_subscribe('n', 'loose', ordering => 'none');
SELECT queen_subscribe('n', 'g'), queen_subscribe('n', 'strict', ordering => 'partition');
SELECT queen_configure_group('n', 'g', ordering => 'none');
SELECT ordering FROM queen_configure_group('n', 'g', retry_limit => 1);
SELECT queen_configure_group('n', 'g', unset => ARRAY['delivery']);
SELECT delivery FROM queen_configure('n', unset => ARRAY['delivery']);
SELECT ordering FROM queen_configure_group('n', 'g', ordering => 'none');
\set VERBOSITY default
SELECT queen_configure('n', delivery => 'latest');
SELECT queen_configure('n', delivery => 'newest');
\set VERBOSITY sqlstate
-- Also for a group that was there before its queue.
SELECT queen_subscribe('later', 'loose', ordering => 'none');
SELECT queen_configure('later', delivery => 'latest');
SELECT queen_unsubscribe('later', 'loose');
SELECT delivery FROM queen_configure('later', delivery => 'latest');
