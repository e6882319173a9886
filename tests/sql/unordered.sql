-- Groups without order: several leases at a time, messages that fail alone, and what a change of ordering keeps.
\set VERBOSITY sqlstate
\pset footer off
\pset null (null)

-- pop QUEUE CONSUMER: pops for a consumer of group g, which then holds the messages. Shows them sorted by number, as
-- number (attempt), because the order of redeliveries is not promised.
CREATE TEMPORARY TABLE held (consumer text, queue text, number int, partition text, message_id bigint, attempt int, lease uuid);
CREATE FUNCTION pg_temp.pop(queue text, consumer text, batch int DEFAULT 1, part text DEFAULT NULL, parts int DEFAULT 10, hold interval DEFAULT NULL,
  worker text DEFAULT 'g') RETURNS text LANGUAGE sql AS $$
  DELETE FROM held WHERE held.consumer = pop.consumer;
  INSERT INTO held SELECT pop.consumer, queue, payload::int, partition, message_id, delivery_attempt, lease_id
  FROM queen_pop(pop.queue, worker, batch => batch, partition => part, partitions => parts, lease_time => hold,
    subscription_mode => CASE WHEN worker IS NOT NULL THEN 'all' END);
  SELECT string_agg(format('%s (%s)', number, attempt), ', ' ORDER BY number) FROM held WHERE held.consumer = pop.consumer;
$$;
CREATE FUNCTION pg_temp.lease(consumer text) RETURNS uuid LANGUAGE sql AS 'SELECT DISTINCT lease FROM held WHERE held.consumer = lease.consumer';
-- Message ids of the consumer's queue, also of messages that other consumers hold.
CREATE FUNCTION pg_temp.ids(consumer text, numbers int[]) RETURNS bigint[] LANGUAGE sql AS $$
  SELECT array_agg(DISTINCT message_id) FROM held WHERE number = ANY (numbers)
    AND queue = (SELECT DISTINCT queue FROM held WHERE held.consumer = ids.consumer) $$;
-- A consumer's ack of these numbers, or of everything it holds.
CREATE FUNCTION pg_temp.ack(consumer text, numbers int[], status text DEFAULT 'completed', error text DEFAULT NULL, part text DEFAULT NULL)
RETURNS TABLE (settled int, already int, dead_lettered int, lease_released boolean) LANGUAGE sql AS $$
  SELECT * FROM queen_ack(pg_temp.lease(consumer), message_ids => pg_temp.ids(consumer, numbers), status => status, error => error, partition => part) $$;
-- The SQLSTATE that a command raises.
CREATE FUNCTION pg_temp.code(command text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE command;
  RETURN 'accepted';
EXCEPTION WHEN OTHERS THEN
  RETURN SQLSTATE;
END $$;
CREATE FUNCTION pg_temp.ack_code(consumer text, numbers int[], status text DEFAULT 'completed') RETURNS text LANGUAGE sql AS $$
  SELECT pg_temp.code(format('SELECT pg_temp.ack(%L, %L, %L)', consumer, numbers, status)) $$;
-- The figures of a queue's groups, and which consumer holds how much.
CREATE FUNCTION pg_temp.standing(of_queue text)
RETURNS TABLE (consumer_group text, pending bigint, in_flight bigint, retrying bigint, dead_letters bigint) LANGUAGE sql AS $$
  SELECT consumer_group, pending, in_flight, retrying, dead_letters FROM queen_groups WHERE queue = of_queue ORDER BY consumer_group COLLATE "C" $$;
CREATE FUNCTION pg_temp.leases(of_queue text) RETURNS TABLE (holder text, partition text, messages bigint, delivery_attempt int) LANGUAGE sql AS $$
  SELECT holder, partition, messages, delivery_attempt FROM queen_leases
  LEFT JOIN (SELECT DISTINCT consumer AS holder, lease FROM held) h ON lease = lease_id WHERE queue = of_queue ORDER BY holder COLLATE "C", partition COLLATE "C" $$;
CREATE FUNCTION pg_temp.fill(queue text, from_number int, to_number int, part text DEFAULT 'Default') RETURNS bigint LANGUAGE sql AS $$
  SELECT count(*) FROM queen_push_batch(queue, (SELECT array_agg(to_jsonb(n) ORDER BY n) FROM generate_series(from_number, to_number) n), part) $$;

-- A group has its own ordering or that of its queue. It shows in how many of three pops get a lease.
CREATE FUNCTION pg_temp.side_by_side(queue text, worker text) RETURNS bigint LANGUAGE sql AS $$
  SELECT count(*) FROM generate_series(1, 3) minutes, queen_pop(queue, worker, lease_time => minutes * interval '1 min') $$;
SELECT queue, ordering, pg_temp.fill(queue, 1, 3)
FROM (VALUES ('loose', 'none'), ('strict', 'partition')) q (name, how), queen_configure(name, ordering => how);
SELECT queue, own, queen_subscribe(queue, coalesce(own, 'as the queue'), 'all', ordering => own) AS registered,
       queen_subscribe(queue, coalesce(own, 'as the queue'), 'all', ordering => CASE own WHEN 'none' THEN 'partition' ELSE 'none' END) AS again,
       pg_temp.side_by_side(queue, coalesce(own, 'as the queue'))
FROM (VALUES ('loose'), ('strict')) q (queue), (VALUES (NULL), ('partition'), ('none')) g (own);
SELECT pg_temp.side_by_side('loose', NULL) AS loose, pg_temp.side_by_side('strict', NULL) AS strict;
SELECT queen_configure('loose', ordering => 'random');
SELECT queen_configure('loose', ordering => 'none', unset => ARRAY['ordering']);
SELECT queen_subscribe('loose', 'x', ordering => 'random');
SELECT queen_subscribe('loose', 'x', ordering => '');
SELECT count(*) AS registered_by_these FROM queen_groups WHERE consumer_group = 'x';

-- First deliveries are in order, however the messages were pushed and popped.
SELECT ordering FROM queen_configure('u', ordering => 'none', retry_delay => '1 h');
SELECT pg_temp.fill('u', 1, 5), pg_temp.fill('u', 6, 6), pg_temp.fill('u', 7, 9);
SELECT ordinality, payload, delivery_attempt FROM queen_pop('u', 'lone', batch => 4, subscription_mode => 'all') WITH ORDINALITY;
SELECT ordinality, payload, delivery_attempt FROM queen_pop('u', 'lone', batch => 4) WITH ORDINALITY;
SELECT ordinality, payload, delivery_attempt FROM queen_pop('u', 'lone', batch => 4) WITH ORDINALITY;
SELECT queen_unsubscribe('u', 'lone');

-- Three consumers pop from one partition, and for a fourth nothing is left.
SELECT consumer, pg_temp.pop('u', consumer, batch) FROM (VALUES ('a', 3), ('b', 2), ('c', 10), ('d', 10)) c (consumer, batch);
SELECT * FROM pg_temp.standing('u');
SELECT * FROM pg_temp.leases('u');
SELECT depth, partitions, groups FROM queen_queues WHERE queue = 'u';
SELECT count(*) AS held, count(DISTINCT message_id) AS messages, count(DISTINCT lease) AS leases FROM held;

-- An ack settles what it names, in any order. The last one releases the lease. Repeating it does no harm.
SELECT step.*, done.*
FROM (VALUES ('a', '{2}'::int[]), ('a', '{2}'), ('a', '{2,3}'), ('b', NULL), ('b', NULL), ('b', '{5}'), ('a', '{1}'), ('a', NULL)) step (consumer, numbers),
  pg_temp.ack(consumer, numbers) done;
SELECT * FROM pg_temp.standing('u');
SELECT * FROM pg_temp.leases('u');

-- A failed message waits alone, and its lease goes on. A dead letter is made at once. A retry comes back at once.
SELECT step.*, done.*
FROM (VALUES ('{6}'::int[], 'failed'), ('{7}', 'dead_letter'), ('{8}', 'retry')) step (numbers, status),
  pg_temp.ack('c', numbers, status, 'no ' || numbers[1]) done;
SELECT * FROM pg_temp.standing('u');
SELECT * FROM pg_temp.leases('u');
SELECT payload, error, failures, deliveries FROM queen_dead_letters WHERE queue = 'u';
SELECT pg_temp.fill('u', 10, 10), pg_temp.pop('u', 'd', 10);
SELECT * FROM pg_temp.leases('u');
-- A message that was given back has left the lease (6), and is superseded once another lease has it (8). A dead letter
-- cannot be completed (7). The others are as before, and an ack of everything settles only them.
SELECT numbers, status, pg_temp.ack_code('c', numbers, status)
FROM (VALUES ('{6}'::int[], 'completed'), ('{6}', 'failed'), ('{6,9}', 'completed'), ('{8}', 'completed'), ('{8}', 'failed'), ('{8,9}', 'completed'),
  ('{7}', 'completed'), ('{7}', 'retry'), ('{7,9}', 'completed')) step (numbers, status);
SELECT step.*, done.*
FROM (VALUES ('c', '{7}'::int[], 'dead_letter'), ('c', NULL, 'completed'), ('c', NULL, 'completed'), ('d', NULL, 'completed')) step (consumer, numbers, status),
  pg_temp.ack(consumer, numbers, status) done;
SELECT pg_temp.ack_code('c', '{8}') AS completed_by_another;
SELECT pg_temp.pop('u', 'd', 10);
SELECT * FROM pg_temp.standing('u');

-- Acks by transaction_id, also by one that two messages have, in one partition or in two.
SELECT dedup_window FROM queen_configure('named', ordering => 'none', dedup_window => '0');
SELECT count(*) FROM (VALUES (1, 'p', 'x'), (2, 'p', 'y'), (3, 'p', 'x'), (4, 'q', 'x'), (5, 'q', 'z')) m (n, part, id),
  queen_push('named', to_jsonb(n), part, id);
SELECT pg_temp.pop('named', 'a', 10), pg_temp.lease('a') AS lease \gset
SELECT * FROM pg_temp.leases('named');
SELECT ids, part, pg_temp.code(format('SELECT queen_ack(%L, transaction_ids => %L, partition => %L)', :'lease', ids, part))
FROM (VALUES ('{x}'::text[], NULL), ('{x,y}', NULL), ('{y}', 'q'), ('{y}', 'elsewhere'), ('{absent}', NULL)) step (ids, part);
SELECT step.*, done.*
FROM (VALUES ('{x}'::text[], 'p', 'completed'), ('{x,y}', 'p', 'completed'), ('{x}', 'q', 'retry'), ('{z}', NULL, 'completed')) step (ids, part, status),
  queen_ack(:'lease', transaction_ids => ids, partition => part, status => status) done;
SELECT pg_temp.pop('named', 'a', 10);

-- One lease over several partitions: batch is the total, and each partition is in order.
SELECT ordering FROM queen_configure('wide', ordering => 'none');
SELECT part, pg_temp.fill('wide', base + 1, base + 3, part) FROM (VALUES ('p', 10), ('q', 20), ('r', 30)) p (part, base);
SELECT pg_temp.pop('wide', 'a', 2, 'q'), pg_temp.pop('wide', 'b', 4) IS NOT NULL AS and_4;
SELECT count(*) AS messages, count(DISTINCT lease) AS leases FROM held WHERE consumer = 'b';
SELECT count(*) AS rest FROM queen_pop('wide', 'g', batch => 100, partitions => 100);
SELECT * FROM pg_temp.standing('wide');
SELECT queen_seek('wide', 'g', 'start'), pg_temp.pop('wide', 'b', 100, parts => 2) IS NOT NULL AS and_two_partitions;
SELECT count(*) AS messages, count(DISTINCT partition) AS partitions, count(DISTINCT lease) AS leases FROM held WHERE consumer = 'b';
SELECT queen_seek('wide', 'g', 'start'), pg_temp.pop('wide', 'a', 2, 'q');
SELECT partition, array_agg(payload ORDER BY ordinality) AS in_order, count(DISTINCT lease_id) AS leases
FROM queen_pop('wide', 'g', batch => 100, partitions => 100) WITH ORDINALITY GROUP BY 1 ORDER BY 1;
SELECT queen_seek('wide', 'g', 'start'), pg_temp.pop('wide', 'a', 2, 'q'), pg_temp.pop('wide', 'b', 100);
SELECT * FROM pg_temp.leases('wide');
SELECT part, done.* FROM (VALUES ('q'), ('p'), ('p'), (NULL)) step (part), pg_temp.ack('b', NULL, part => part) done;
SELECT * FROM pg_temp.leases('wide');

-- A failed message comes back after a delay that grows. Other messages do not wait for it.
SELECT retry_delay, retry_backoff FROM queen_configure('late', ordering => 'none', retry_delay => '400 ms', retry_backoff => 2);
SELECT pg_temp.fill('late', 1, 2), pg_temp.pop('late', 'a', 2);
SELECT clock_timestamp() AS began \gset
SELECT * FROM pg_temp.ack('a', '{1}', 'failed');
SELECT pg_temp.fill('late', 3, 3), pg_temp.pop('late', 'b', 10);
SELECT payload, delivery_attempt, clock_timestamp() - :'began' BETWEEN '400 ms' AND '5 s' AS in_time, lease_id
FROM queen_pop('late', 'g', wait => '5 s') \gset
SELECT :'payload' AS payload, :delivery_attempt AS delivery_attempt, :'in_time' AS in_time;
SELECT clock_timestamp() AS began \gset
SELECT * FROM queen_ack(:'lease_id', status => 'failed');
SELECT payload, delivery_attempt, clock_timestamp() - :'began' BETWEEN '800 ms' AND '5 s' AS in_time
FROM queen_pop('late', 'g', wait => '5 s');
SELECT * FROM pg_temp.standing('late');

-- Each message has a budget of its own in each group: one message fails twice, another once.
SELECT retry_limit FROM queen_configure('budget', ordering => 'none', retry_limit => 1);
SELECT pg_temp.fill('budget', 1, 3), queen_subscribe('budget', 'other', 'all');
SELECT pg_temp.pop('budget', 'a', 3);
SELECT * FROM pg_temp.ack('a', '{1,2}', 'failed', 'first');
SELECT pg_temp.pop('budget', 'b', 3);
SELECT * FROM pg_temp.ack('b', '{2}', 'retry');
SELECT * FROM pg_temp.ack('b', '{1}', 'failed', 'second');
SELECT pg_temp.pop('budget', 'c', 3);
SELECT * FROM pg_temp.ack('c', NULL, 'retry');
SELECT pg_temp.pop('budget', 'c', 3);
SELECT * FROM pg_temp.ack('c', '{2}', 'failed', 'second, after two more deliveries');
SELECT * FROM pg_temp.ack('a', '{3}');
SELECT payload, consumer_group, error, failures, deliveries FROM queen_dead_letters WHERE queue = 'budget' ORDER BY message_id;
SELECT pg_temp.pop('budget', 'o', 3, worker => 'other');
SELECT * FROM pg_temp.ack('o', '{1}', 'failed');
SELECT * FROM pg_temp.standing('budget');
-- A replayed message goes to the end, as new, for its own group.
SELECT count(*) FROM queen_dead_letters, queen_dead_letter_replay(dead_letter_id) WHERE queue = 'budget' AND payload = '1';
SELECT * FROM pg_temp.standing('budget');
SELECT pg_temp.pop('budget', 'a', 3), pg_temp.pop('budget', 'o2', 3, worker => 'other');

-- max_deliveries: an expired lease counts as a delivery of each of its messages. Then they are exhausted, and others are delivered.
SELECT max_deliveries, on_exhausted FROM queen_configure('crash', ordering => 'none', max_deliveries => 2);
SELECT pg_temp.fill('crash', 1, 3), pg_temp.pop('crash', 'a', 2, hold => '1 ms');
DO $$ BEGIN PERFORM pg_sleep(0.01); END $$;
SELECT * FROM pg_temp.standing('crash');
SELECT pg_temp.pop('crash', 'b', 10, hold => '1 ms');
DO $$ BEGIN PERFORM pg_sleep(0.01); END $$;
SELECT pg_temp.pop('crash', 'c', 10);
SELECT payload, error, failures, deliveries FROM queen_dead_letters WHERE queue = 'crash' ORDER BY message_id;
SELECT * FROM pg_temp.standing('crash');
SELECT max_deliveries, on_exhausted, retry_limit
FROM queen_configure('drop', ordering => 'none', max_deliveries => 1, on_exhausted => 'drop', retry_limit => 0);
SELECT pg_temp.fill('drop', 1, 2), pg_temp.pop('drop', 'a', 1), pg_temp.pop('drop', 'b', 1, hold => '1 ms');
SELECT outcome FROM queen_settle(pg_temp.lease('a'), jsonb_build_array(jsonb_build_object('messageId', (pg_temp.ids('a', '{1}'))[1], 'status', 'failed')));
DO $$ BEGIN PERFORM pg_sleep(0.01); END $$;
SELECT pg_temp.pop('drop', 'c', 10);
SELECT * FROM pg_temp.standing('drop');

-- Different statuses in one call are settled together or not at all.
SELECT retry_limit FROM queen_configure('mixed', ordering => 'none', retry_limit => 0);
SELECT pg_temp.fill('mixed', 1, 6), pg_temp.pop('mixed', 'a', 5), pg_temp.pop('mixed', 'b');
CREATE FUNCTION pg_temp.results(set text) RETURNS jsonb LANGUAGE sql AS $$
  SELECT jsonb_agg(jsonb_build_object('messageId', (pg_temp.ids('a', ARRAY[split_part(one, ' ', 1)::int]))[1], 'status', split_part(one, ' ', 2)))
  FROM unnest(string_to_array(set, ', ')) one $$;
SELECT set, pg_temp.code(format('SELECT queen_settle(%L, %L)', pg_temp.lease('a'), pg_temp.results(set)))
FROM (VALUES ('1 completed, 6 completed'), ('1 completed, 1 failed'), ('1 done')) s (set);
SELECT * FROM pg_temp.standing('mixed');
SELECT number, outcome FROM queen_settle(pg_temp.lease('a'), pg_temp.results('4 completed, 3 retry, 2 failed, 1 dead_letter, 4 completed'))
JOIN held USING (message_id) ORDER BY 1;
SELECT number, outcome FROM queen_settle(pg_temp.lease('a'), pg_temp.results('4 completed, 5 completed'))
JOIN held USING (message_id) ORDER BY 1;
SELECT status, pg_temp.ack_code('a', '{4}', status) FROM (VALUES ('failed'), ('retry'), ('dead_letter')) s (status);
SELECT pg_temp.pop('mixed', 'c', 10);
SELECT * FROM pg_temp.standing('mixed');
SELECT queen_tx_commit(jsonb_build_array(jsonb_build_object('type', 'ack', 'leaseId', pg_temp.lease('c')))) #- '{results,0,leaseId}';

-- auto_ack: no lease, and no second delivery.
SELECT pg_temp.fill('u', 11, 13);
SELECT payload, delivery_attempt, lease_id, lease_expires_at FROM queen_pop('u', 'g', batch => 2, auto_ack => true);
SELECT pg_temp.pop('u', 'a'), pg_temp.pop('u', 'b');
SELECT * FROM pg_temp.standing('u');
SELECT * FROM pg_temp.ack('a', NULL);

-- Queue mode: the group is NULL, and starts at the oldest message.
SELECT pg_temp.fill('mode', 1, 3), ordering FROM queen_configure('mode', ordering => 'none');
SELECT pg_temp.pop('mode', 'a', 1, worker => NULL), pg_temp.pop('mode', 'b', 5, worker => NULL);
SELECT DISTINCT consumer_group FROM queen_leases WHERE queue = 'mode';
SELECT * FROM pg_temp.standing('mode');
SELECT * FROM pg_temp.ack('b', NULL);
SELECT queen_seek('mode', NULL, 'end');
SELECT pg_temp.ack_code('a', NULL);
SELECT * FROM pg_temp.standing('mode');

-- What is rolled back has not happened: the pop, the ack, and the count of deliveries.
SELECT pg_temp.fill('undone', 1, 3), ordering FROM queen_configure('undone', ordering => 'none');
BEGIN;
SELECT pg_temp.pop('undone', 'a', 2);
SAVEPOINT before;
SELECT pg_temp.pop('undone', 'b', 2);
SELECT * FROM pg_temp.ack('a', '{1}');
ROLLBACK TO SAVEPOINT before;
SELECT pg_temp.pop('undone', 'b', 2);
SELECT * FROM pg_temp.ack('a', NULL);
ROLLBACK;
SELECT pg_temp.pop('undone', 'a', 3);
-- An empty pop writes nothing and uses no transaction id.
BEGIN;
SELECT count(*) FROM queen_pop('undone', 'g');
SELECT pg_current_xact_id_if_assigned();
COMMIT;

-- The fence. A lease that has run out is QN001 for all of its messages. A message that another lease has now is QN002, the
-- others are still QN001.
SELECT pg_temp.fill('fence', 1, 3), ordering FROM queen_configure('fence', ordering => 'none');
SELECT pg_temp.pop('fence', 'a', 3, hold => '1 ms');
DO $$ BEGIN PERFORM pg_sleep(0.01); END $$;
CREATE FUNCTION pg_temp.fence() RETURNS TABLE (numbers int[], ack text) LANGUAGE sql AS $$
  SELECT numbers, pg_temp.ack_code('a', numbers) FROM (VALUES ('{1}'::int[]), ('{2}'), ('{3}'), ('{1,2}'), (NULL)) n (numbers) $$;
SELECT * FROM pg_temp.fence();
SELECT queen_extend(pg_temp.lease('a'));
SELECT * FROM pg_temp.standing('fence');
SELECT * FROM pg_temp.leases('fence');
SELECT pg_temp.pop('fence', 'b') IS NOT NULL AS one_of_them;
SELECT count(*) FILTER (WHERE ack = 'QN002') AS moved, count(*) FILTER (WHERE ack = 'QN001') AS free FROM pg_temp.fence() WHERE cardinality(numbers) = 1;
SELECT pg_temp.ack_code('a', NULL) AS all_of_it;
SELECT * FROM pg_temp.ack('b', NULL);
SELECT count(*) FILTER (WHERE ack = 'QN002') AS moved, count(*) FILTER (WHERE ack = 'QN001') AS free FROM pg_temp.fence() WHERE cardinality(numbers) = 1;
SELECT pg_temp.pop('fence', 'b', 10) IS NOT NULL AS rest;
SELECT count(*), max(attempt) FROM held WHERE consumer = 'b';
SELECT * FROM pg_temp.fence();
SELECT queen_extend(pg_temp.lease('a'));
-- Messages of another consumer, and leases that do not exist.
SELECT pg_temp.fill('fence', 4, 4), pg_temp.pop('fence', 'c');
SELECT pg_temp.ack_code('b', '{4}') AS foreign_message,
       pg_temp.code('SELECT pg_temp.ack(''c'', NULL, part => ''elsewhere'')') AS foreign_partition,
       pg_temp.code(format('SELECT queen_ack(%L)', gen_random_uuid())) AS unknown_lease;
SELECT pg_temp.code(format('SELECT queen_ack(%L, %s)', pg_temp.lease('c'), arguments)), arguments
FROM (VALUES ('''{}'''), ('''{NULL}'''), ('NULL, ''done'''), ('ARRAY[1], transaction_ids => ARRAY[''x'']'), ('transaction_ids => ''{}''')) a (arguments);

-- Extending a lease holds what is left in it, never shortens it, and never revives it.
SELECT queen_extend(pg_temp.lease('c'), '10 min') > clock_timestamp() + '9 min' AS longer;
SELECT queen_extend(pg_temp.lease('c'), '1 s') > clock_timestamp() + '9 min' AS still;
SELECT * FROM pg_temp.ack('c', '{4}', 'retry');
SELECT queen_extend(pg_temp.lease('c'));

-- A seek ends leases and resets the counts. In one partition it ends only that part of a lease.
SELECT pg_temp.fill('moved', 1, 3, 'p'), pg_temp.fill('moved', 4, 5, 'q'), ordering FROM queen_configure('moved', ordering => 'none', retry_limit => 1);
SELECT pg_temp.pop('moved', 'a', 3, 'p');
SELECT * FROM pg_temp.ack('a', '{1}');
SELECT * FROM pg_temp.ack('a', '{2,3}', 'failed', 'once');
SELECT pg_temp.pop('moved', 'a', 10);
SELECT * FROM pg_temp.standing('moved');
SELECT queen_seek('moved', 'g', 'start', partition => 'p');
SELECT * FROM pg_temp.standing('moved');
SELECT * FROM pg_temp.leases('moved');
SELECT numbers, pg_temp.ack_code('a', numbers) FROM (VALUES ('{2}'::int[]), ('{2,4}'), (NULL)) n (numbers);
SELECT * FROM pg_temp.ack('a', '{4}');
SELECT pg_temp.pop('moved', 'b', 10);
SELECT * FROM pg_temp.ack('b', '{2}', 'failed', 'the first one again');
SELECT queen_seek('moved', 'g', 'end'), pg_temp.pop('moved', 'c', 10);
SELECT * FROM pg_temp.standing('moved');
SELECT pg_temp.fill('moved', 6, 6, 'p'), pg_temp.pop('moved', 'c', 10);

-- Unsubscribing and a purge do so, too; an unsubscribed group begins again. Leases of a removed queue are unknown.
SELECT queen_unsubscribe('moved', 'g'), pg_temp.ack_code('c', NULL);
SELECT queen_subscribe('moved', 'g', 'all'), pg_temp.pop('moved', 'a', 10);
SELECT queen_purge('moved'), pg_temp.ack_code('a', NULL), pg_temp.code(format('SELECT queen_extend(%L)', pg_temp.lease('a')));
SELECT * FROM pg_temp.standing('moved');
SELECT pg_temp.fill('moved', 7, 8, 'p'), pg_temp.pop('moved', 'b', 10);
SELECT queen_delete_queue('moved'), pg_temp.ack_code('a', NULL), pg_temp.ack_code('b', NULL);
SELECT count(*) FROM pg_temp.standing('moved');

-- The ordering cannot change, in either direction, while leases are live. Nothing else of such a call happens.
SELECT queen_subscribe('switch', 'g', 'all'), queen_subscribe('switch', 'own', 'all', ordering => 'none');
SELECT ordering FROM queen_configure('switch', retry_limit => 1);
SELECT pg_temp.fill('switch', 1, 6), pg_temp.pop('switch', 'a', 4), pg_temp.pop('switch', 'b'), pg_temp.pop('switch', 'o', worker => 'own');
SELECT queen_configure('switch', retry_limit => 9, ordering => 'none');
SELECT ordering, retry_limit FROM queen_configure('switch', ordering => 'partition');
-- In the ordered group 1 is completed, 2 fails, and 3 and 4 come back with it. The switch keeps all of that.
SELECT * FROM pg_temp.ack('a', '{1}');
SELECT * FROM pg_temp.ack('a', '{2}', 'failed', 'in order');
SELECT * FROM pg_temp.standing('switch');
SELECT ordering FROM queen_configure('switch', ordering => 'none');
SELECT * FROM pg_temp.standing('switch');
SELECT pg_temp.pop('switch', 'a', 10), pg_temp.fill('switch', 7, 7), pg_temp.pop('switch', 'b', 10);
SELECT command, pg_temp.code(format('SELECT queen_configure(''switch'', %s)', command))
FROM (VALUES ('ordering => ''partition'''), ('unset => ARRAY[''ordering'']'), ('reset => true'), ('ordering => ''none''')) c (command);
-- A second failure of 2 exhausts it; 3 fails for the first time, 4 is completed, and 5, 6 and 7 are given back.
SELECT step.*, done.*
FROM (VALUES ('{2}'::int[], 'failed'), ('{4}', 'completed'), ('{3}', 'failed'), ('{5,6}', 'retry')) step (numbers, status),
  pg_temp.ack('a', numbers, status, 'without order') done;
SELECT queen_configure('switch', ordering => 'partition');
SELECT * FROM pg_temp.ack('b', NULL, 'retry');
SELECT * FROM pg_temp.standing('switch');
SELECT ordering, retry_limit FROM queen_configure('switch', unset => ARRAY['ordering']);
SELECT * FROM pg_temp.standing('switch');
SELECT ordinality, payload, delivery_attempt FROM queen_pop('switch', 'g', batch => 10) WITH ORDINALITY;
SELECT pg_temp.pop('switch', 'b');
-- The group with an ordering of its own did not prevent the switch.
SELECT pg_temp.pop('switch', 'p', worker => 'own');
SELECT * FROM pg_temp.leases('switch');
SELECT * FROM pg_temp.ack('o', NULL);
SELECT payload, error, failures, deliveries FROM queen_dead_letters WHERE queue = 'switch';
-- A message that waits for its retry goes on waiting. In an ordered group the next messages wait with it, in one without order it waits alone.
SELECT ordering FROM queen_configure('waits', retry_delay => '1 h');
SELECT pg_temp.fill('waits', 1, 3), pg_temp.pop('waits', 'a');
SELECT * FROM pg_temp.ack('a', NULL, 'failed');
SELECT pg_temp.pop('waits', 'b', 10);
SELECT ordering FROM queen_configure('waits', ordering => 'none');
SELECT * FROM pg_temp.standing('waits');
SELECT pg_temp.pop('waits', 'b', 10);
SELECT * FROM pg_temp.standing('waits');
SELECT * FROM pg_temp.ack('b', NULL);
SELECT ordering FROM queen_configure('waits', unset => ARRAY['ordering']);
SELECT pg_temp.fill('waits', 4, 4), pg_temp.pop('waits', 'b', 10);
SELECT * FROM pg_temp.standing('waits');
-- A lease that has run out before the switch is lost.
SELECT queen_seek('switch', 'g', 'start'), pg_temp.pop('switch', 'a', 2, hold => '1 ms');
DO $$ BEGIN PERFORM pg_sleep(0.01); END $$;
SELECT pg_temp.ack_code('a', NULL);
SELECT ordering FROM queen_configure('switch', ordering => 'none');
SELECT pg_temp.ack_code('a', NULL);
SELECT pg_temp.pop('switch', 'b', 10);

-- A sweep does not change what is pending, held or waiting.
CREATE TEMPORARY VIEW all_standing AS
SELECT queue, consumer_group, pending, in_flight, retrying, dead_letters FROM queen_groups ORDER BY queue COLLATE "C", consumer_group COLLATE "C";
CREATE TEMPORARY TABLE before AS TABLE all_standing;
DO $$ BEGIN FOR i IN 1..4 LOOP PERFORM queen_sweep(); END LOOP; END $$;
TABLE all_standing;
(TABLE all_standing EXCEPT ALL TABLE before) UNION ALL (TABLE before EXCEPT ALL TABLE all_standing);
SELECT * FROM pg_temp.ack('b', NULL);

-- The rows of one pop are in the order of the log within each partition, also those that came back.
SELECT ordering FROM queen_configure('sorted', ordering => 'none');
SELECT count(*) FROM queen_push_items((SELECT jsonb_agg(jsonb_build_object('queue', 'sorted', 'partition', 'p' || n % 2, 'payload', n)) FROM generate_series(1, 12) AS n));
SELECT lease_id AS lease FROM queen_pop('sorted', batch => 8, partitions => 2) LIMIT 1 \gset
SELECT count(*) FROM queen_push('sorted', '13', 'p1');
SELECT settled FROM queen_ack(:'lease', status => 'retry');
SELECT partition, array_agg(payload ORDER BY ordinality) = array_agg(payload ORDER BY message_id) AS is_sorted, count(*)
FROM queen_pop('sorted', batch => 20, partitions => 2) WITH ORDINALITY GROUP BY partition ORDER BY partition;
