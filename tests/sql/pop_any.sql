-- Popping from the first of several queues that has something.
\set VERBOSITY sqlstate
\pset footer off
\pset null (null)
SELECT count(*) FROM unnest(ARRAY['urgent', 'normal', 'bulk']) AS q, generate_series(1, 2) AS n, queen_push(q, to_jsonb(q || n));

-- The order of the list is the priority. A lease covers messages of one queue.
SELECT queue, payload, consumer_group, delivery_attempt, failures FROM queen_pop_any(ARRAY['urgent', 'normal', 'bulk'], batch => 10);
SELECT queue, payload FROM queen_pop_any(ARRAY['urgent', 'bulk', 'normal']);
SELECT queue, payload, lease_id, lease_expires_at FROM queen_pop_any(ARRAY['urgent', 'normal'], batch => 2, auto_ack => true);
SELECT count(*) AS all_is_taken FROM queen_pop_any(ARRAY['urgent', 'normal', 'bulk']);
SELECT queue, count(*) FROM queen_leases GROUP BY queue ORDER BY queue;

-- What is pushed to the first comes before what waits in the others.
SELECT count(*) FROM queen_push('urgent', '"urgent3"', 'p2');
SELECT queue, partition, payload FROM queen_pop_any(ARRAY['urgent', 'bulk']);
SELECT queen_purge('urgent', 'p2');

-- A group is registered in all queues of the list, as of its first pop, in its mode.
SELECT count(*) AS of_the_past FROM queen_pop_any(ARRAY['urgent', 'normal', 'later'], 'young');
SELECT queue, payload FROM queen_pop_any(ARRAY['urgent', 'normal'], 'all', subscription_mode => 'all', batch => 2);
SELECT queue, consumer_group, pending FROM queen_groups WHERE consumer_group IN ('young', 'all') ORDER BY 2, 1;
SELECT count(*) FROM unnest(ARRAY['later', 'normal']) AS q, queen_push(q, '"new"');
SELECT queue, payload FROM queen_pop_any(ARRAY['urgent', 'normal', 'later'], 'young');
SELECT queue, payload FROM queen_pop_any(ARRAY['urgent', 'normal', 'later'], 'young');

-- Also where the first queue has something: what is pushed to the others after that is not missed.
SELECT queen_subscribe('urgent', 'half', 'all');
SELECT queue, payload FROM queen_pop_any(ARRAY['urgent', 'normal', 'bulk'], 'half', lease_time => '1 h');
SELECT queue, pending FROM queen_groups WHERE consumer_group = 'half' ORDER BY 1;
SELECT count(*) FROM unnest(ARRAY['bulk', 'normal']) AS q, queen_push(q, '"after"');
SELECT queue, payload FROM queen_pop_any(ARRAY['normal', 'bulk'], 'half');
SELECT queue, payload FROM queen_pop_any(ARRAY['normal', 'bulk'], 'half');

-- Without order, with several partitions, and from a list of one.
SELECT ordering FROM queen_configure('free', ordering => 'none');
SELECT count(*) FROM generate_series(1, 4) AS n, queen_push('free', to_jsonb(n), 'p' || n % 2);
SELECT queue, partition, payload FROM queen_pop_any(ARRAY['urgent', 'free'], batch => 4, partitions => 2) ORDER BY 3;
SELECT queue, payload FROM queen_pop_any(ARRAY['urgent'], 'one', subscription_mode => 'all');

-- A delay that is over, in a later queue.
SELECT status FROM queen_push('slow', '"delayed"', delay => '1 ms');
SELECT pg_sleep(0.01);
SELECT queue, payload FROM queen_pop_any(ARRAY['urgent', 'slow'], 'timed', subscription_mode => 'all', auto_ack => true, batch => 9, partitions => 9) WHERE queue <> 'urgent';
SELECT queue, payload FROM queen_pop_any(ARRAY['urgent', 'slow'], 'timed', auto_ack => true);

-- A pop that is rolled back has not happened: its registrations neither.
BEGIN;
SELECT queue, payload FROM queen_pop_any(ARRAY['bulk', 'normal'], 'undone', subscription_mode => 'all');
ROLLBACK;
SELECT count(*) FROM queen_groups WHERE consumer_group = 'undone';

-- Waiting: nothing comes.
SELECT count(*) FROM queen_pop_any(ARRAY['nothing', 'here'], 'g', wait => '30 ms');
SELECT queue FROM queen_groups WHERE consumer_group = 'g' ORDER BY 1;
-- An empty pop writes nothing and uses no transaction id.
BEGIN;
SELECT count(*) FROM queen_pop_any(ARRAY['nothing', 'here'], 'g', wait => '30 ms');
SELECT pg_current_xact_id_if_assigned();
COMMIT;

-- Refused with 22023.
SELECT * FROM queen_pop_any(NULL);
SELECT * FROM queen_pop_any('{}');
SELECT * FROM queen_pop_any('{a,NULL}');
SELECT * FROM queen_pop_any('{a,b,a}');
SELECT * FROM queen_pop_any('{{a,b}}');
SELECT * FROM queen_pop_any('{a,""}');
SELECT * FROM queen_pop_any(ARRAY['a', repeat('x', 256)]);
SELECT * FROM queen_pop_any(ARRAY(SELECT 'q' || n FROM generate_series(1, 33) AS n));
SELECT * FROM queen_pop_any('{a}', '');
SELECT * FROM queen_pop_any('{a}', batch => 0);
SELECT * FROM queen_pop_any('{a}', partitions => 1001);
SELECT * FROM queen_pop_any('{a}', wait => '61 s');
SELECT * FROM queen_pop_any('{a}', subscription_mode => 'earliest');
SELECT count(*) AS is_enough FROM queen_pop_any(ARRAY(SELECT 'q' || n FROM generate_series(1, 32) AS n), 'many');
SELECT count(*) FROM queen_groups WHERE consumer_group = 'many';

-- With auto_create off, each queue of the list must be there.
SET queen_mq.auto_create = off;
SELECT count(*) FROM queen_pop_any('{urgent,unknown}', 'strict', subscription_mode => 'all');
SELECT count(*) FROM queen_pop_any('{urgent,normal}', 'strict', subscription_mode => 'all');
SELECT count(*) FROM queen_pop_any('{q1}', 'many');
RESET queen_mq.auto_create;
\set VERBOSITY terse
SELECT count(*) FROM queen_pop_any('{a,b,a}');
SELECT count(*) FROM queen_pop_any('{urgent,nowhere}', 'newcomer');
