-- Pop: queue mode and groups, modes, leases, order, batches, and what is refused.
\set VERBOSITY sqlstate
\pset footer off
\pset null (null)

-- A queue that does not exist: the pop returns nothing and makes no queue, but registers the group.
SELECT count(*) FROM queen_pop('pop', 'early');
SELECT queue, consumer_group, pending FROM queen_groups;

SELECT status FROM queen_push_batch('pop', ARRAY['1', '2', '3']::jsonb[]);

-- Queue mode starts at the oldest message. Its group is NULL.
SELECT queue, partition, payload, headers, consumer_group, delivery_attempt, lease_expires_at - clock_timestamp() BETWEEN '50 s' AND '60 s' AS for_a_minute
FROM queen_pop('pop');
-- A partition has one live lease.
SELECT count(*) AS while_it_is_leased FROM queen_pop('pop');

-- A group that was registered before the first push gets everything; a new one gets new messages.
SELECT payload, consumer_group FROM queen_pop('pop', 'early', batch => 10);
SELECT count(*) AS of_the_past FROM queen_pop('pop', 'late', batch => 10);
SELECT payload FROM queen_pop('pop', 'all', batch => 10, subscription_mode => 'all');
SELECT status FROM queen_push('pop', '4');
SELECT payload FROM queen_pop('pop', 'late', batch => 10);

-- Starting at a time. For a registered group, mode and time are ignored.
SELECT created_at AS of_4 FROM queen_messages WHERE payload = '4' \gset
SELECT payload FROM queen_pop('pop', 'since', batch => 10, subscription_from => :'of_4');
SELECT count(*) AS ignored FROM queen_pop('pop', 'since', batch => 10, subscription_mode => 'all');

-- Subscribing registers a group once.
SELECT queen_subscribe('pop', 'member', 'all') AS registered;
SELECT queen_subscribe('pop', 'member', 'new') AS again;
SELECT payload FROM queen_pop('pop', 'member', batch => 2);

-- A pop that is rolled back has not happened.
BEGIN;
SELECT payload, delivery_attempt FROM queen_pop('pop', 'undo', subscription_mode => 'all');
ROLLBACK;
SELECT payload, delivery_attempt FROM queen_pop('pop', 'undo', subscription_mode => 'all');

-- One lease over several partitions, each in its own order.
SELECT count(*) FROM generate_series(1, 3) AS n, generate_series(1, 2) AS p, queen_push('many', to_jsonb(p * 10 + n), partition => 'p' || p);
SELECT count(DISTINCT partition) AS partitions, count(*) AS messages, count(DISTINCT lease_id) AS leases
FROM queen_pop('many', batch => 100, partitions => 5);
SELECT partition, payload FROM queen_pop('many', 'one', partition => 'p2', batch => 2, subscription_mode => 'all');
SELECT partition, payload FROM queen_pop('many', 'one', batch => 2);
SELECT count(*) AS rest FROM queen_pop('many', 'one', batch => 2);

-- auto_ack: no lease, and no second delivery.
SELECT payload, lease_id, lease_expires_at FROM queen_pop('many', 'most', partition => 'p1', batch => 2, auto_ack => true, subscription_mode => 'all');
SELECT payload FROM queen_pop('many', 'most', partition => 'p1', batch => 5, auto_ack => true);

-- After a lease has expired its messages come again, in order, with the next attempt.
SELECT payload, delivery_attempt FROM queen_pop('pop', 'slow', lease_time => '50 ms', batch => 2, subscription_mode => 'all');
DO $$ BEGIN PERFORM pg_sleep(0.1); END $$;
SELECT payload, delivery_attempt FROM queen_pop('pop', 'slow', batch => 3);

-- An empty pop writes nothing and uses no transaction id.
BEGIN;
SELECT count(*) FROM queen_pop('many', 'one');
SELECT pg_current_xact_id_if_assigned();
COMMIT;

-- Refused with 22023.
SELECT * FROM queen_pop('pop', 'g', batch => 0);
SELECT * FROM queen_pop('pop', 'g', batch => 10001);
SELECT * FROM queen_pop('pop', 'g', partitions => 0);
SELECT * FROM queen_pop('pop', 'g', partitions => 1001);
SELECT * FROM queen_pop('pop', 'g', lease_time => '0');
SELECT * FROM queen_pop('pop', 'g', lease_time => '12 h 1 s');
SELECT * FROM queen_pop('pop', 'g', wait => '61 s');
SELECT * FROM queen_pop('pop', 'g', wait => '-1 s');
SELECT * FROM queen_pop('pop', 'g', subscription_mode => 'earliest');
SELECT * FROM queen_pop('pop', 'g', subscription_mode => 'all', subscription_from => now());
SELECT * FROM queen_pop('pop', '');
SELECT * FROM queen_pop('', 'g');
SELECT queen_subscribe('pop', NULL);
SELECT queen_subscribe('pop', 'g', 'sometimes');
SELECT count(*) AS registered_by_these FROM queen_groups WHERE consumer_group = 'g';

-- A pop says how often the group has failed a message. A lease that ran out is no failure.
SELECT retry_limit FROM queen_configure('fails', retry_limit => 9);
SELECT count(*) FROM queen_push_batch('fails', ARRAY['1', '2']::jsonb[]);
SELECT settled FROM queen_ack((SELECT lease_id FROM queen_pop('fails', 'g', subscription_mode => 'all')), status => 'failed');
SELECT settled FROM queen_ack((SELECT lease_id FROM queen_pop('fails', 'g')), status => 'retry');
SELECT payload, delivery_attempt, failures FROM queen_pop('fails', 'g', batch => 2, lease_time => '1 ms');
SELECT pg_sleep(0.01);
SELECT settled FROM queen_ack((SELECT min(lease_id::text)::uuid FROM queen_pop('fails', 'g', batch => 2)), status => 'failed');
SELECT payload, delivery_attempt, failures FROM queen_pop('fails', 'g', batch => 2, auto_ack => true);
SELECT ordering FROM queen_configure('free', ordering => 'none', retry_limit => 9);
SELECT count(*) FROM queen_push_batch('free', ARRAY['1', '2']::jsonb[]);
SELECT settled FROM queen_ack((SELECT lease_id FROM queen_pop('free')), status => 'failed');
SELECT payload, delivery_attempt, failures FROM queen_pop('free', batch => 2) ORDER BY payload;
