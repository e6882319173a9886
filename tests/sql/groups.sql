-- Consumer groups: subscribe, unsubscribe, seek, purge; what is pending after each.
\set VERBOSITY sqlstate
\pset footer off
\pset null (null)
\t on
SET client_min_messages = warning;

CREATE FUNCTION pg_temp.pending() RETURNS text LANGUAGE sql AS $$
  SELECT string_agg(format('%s %s/%s', coalesce(consumer_group, '-'), pending, in_flight), ', ' ORDER BY consumer_group COLLATE "C" NULLS FIRST)
  FROM queen_groups WHERE queue = 'g' $$;
-- Everything a group is given, settled as it is popped.
CREATE FUNCTION pg_temp.read(worker text, part text DEFAULT NULL) RETURNS text LANGUAGE sql AS $$
  SELECT string_agg(payload::text, ',' ORDER BY message_id)
  FROM queen_pop('g', worker, batch => 100, partitions => 10, partition => part, auto_ack => true) $$;

-- A group may be registered before its queue exists; queue mode cannot be registered.
SELECT queen_subscribe('g', 'early'), queen_subscribe('g', 'early', 'all');
SELECT queen_subscribe('g', NULL);
SELECT count(*) FROM queen_queues WHERE queue = 'g';
SELECT count(*) FROM generate_series(1, 3) n, queen_push('g', to_jsonb(n), 'a');
SELECT count(*) FROM generate_series(4, 5) n, queen_push('g', to_jsonb(n), 'b');
SELECT clock_timestamp() AS middle \gset
SELECT queen_subscribe('g', 'new'), queen_subscribe('g', 'all', 'all'), queen_subscribe('g', 'since', start_at => :'middle');
SELECT count(*) FROM queen_push('g', '6', 'a');
SELECT pg_temp.pending();
SELECT pg_temp.read('new'), pg_temp.read('since'), pg_temp.read('all'), pg_temp.read('early'), pg_temp.read(NULL);
SELECT pg_temp.pending();
SELECT queen_subscribe('g', 'x', 'some'), 1;
SELECT queen_subscribe('g', 'x', 'all', start_at => now());
SELECT queen_subscribe('g', 'x', ordering => 'random');

-- To the start: everything comes again, in one partition or in all, also where the group never read.
SELECT queen_seek('g', 'new', 'start', partition => 'a');
SELECT pg_temp.pending(), pg_temp.read('new');
SELECT queen_seek('g', 'new', 'start');
SELECT pg_temp.pending(), pg_temp.read('new');
-- To the end: only new messages come.
SELECT queen_seek('g', 'all', 'start'), pg_temp.pending(), queen_seek('g', 'all', 'end', partition => 'b');
SELECT pg_temp.pending();
SELECT queen_seek('g', 'all', 'end'), pg_temp.read('all');
SELECT count(*) FROM queen_push('g', '7', 'b');
SELECT pg_temp.pending(), pg_temp.read('all');
-- To a time: what was created at that time or later comes.
SELECT queen_seek('g', 'all', to_time => :'middle'), pg_temp.pending(), pg_temp.read('all');
SELECT queen_seek('g', 'all', to_time => :'middle', partition => 'a'), pg_temp.pending(), pg_temp.read('all');
SELECT queen_seek('g', NULL, 'start'), pg_temp.read(NULL);
SELECT queen_seek('g', 'all'), 1;
SELECT queen_seek('g', 'all', 'start', now());
SELECT queen_seek('g', 'all', 'middle');
SELECT queen_seek('g', 'absent', 'end');
SELECT queen_seek('nothing', 'all', 'end');

-- A seek ends leases and resets the counts.
SELECT queen_seek('g', 'all', 'start');
SELECT lease_id, delivery_attempt FROM queen_pop('g', 'all', partition => 'a') \gset
SELECT * FROM queen_ack(:'lease_id', status => 'retry');
SELECT lease_id, delivery_attempt FROM queen_pop('g', 'all', partition => 'a') \gset
SELECT :delivery_attempt, pg_temp.pending();
SELECT queen_seek('g', 'all', 'start', partition => 'a');
SELECT * FROM queen_ack(:'lease_id');
SELECT queen_extend(:'lease_id');
SELECT delivery_attempt, payload, lease_id FROM queen_pop('g', 'all', partition => 'a') \gset
SELECT :delivery_attempt, :'payload';

-- Unsubscribing does so, too; the group can be registered again.
SELECT queen_unsubscribe('g', 'all'), queen_unsubscribe('g', 'all'), queen_unsubscribe('nothing', 'all'), queen_unsubscribe('g', NULL);
SELECT * FROM queen_ack(:'lease_id');
SELECT * FROM queen_ack(:'lease_id', transaction_ids => ARRAY['t']);
SELECT queen_subscribe('g', 'all', 'all'), pg_temp.pending();
SELECT lease_id FROM queen_pop('g', 'all', batch => 2, partition => 'b') LIMIT 1 \gset first_
SELECT * FROM queen_ack(:'first_lease_id');

-- A purge deletes messages and ends leases; groups and options stay.
SELECT retry_limit FROM queen_configure('g', retry_limit => 9);
SELECT lease_id FROM queen_pop('g', 'all', partition => 'a') \gset
SELECT queen_purge('g'), pg_temp.pending();
SELECT count(*) FROM queen_messages WHERE queue = 'g';
SELECT * FROM queen_ack(:'lease_id');
SELECT * FROM queen_ack(:'first_lease_id');
SELECT queue, options -> 'retry_limit', depth, bytes, partitions, groups FROM queen_queues WHERE queue = 'g';
SELECT count(*) FROM queen_push('g', '8', 'a') a, queen_push('g', '9', 'c') b;
SELECT pg_temp.pending(), pg_temp.read('all'), pg_temp.read('new'), pg_temp.read(NULL);
SELECT queen_purge('nothing');

-- All of that can be rolled back.
BEGIN;
SELECT queen_purge('g'), queen_unsubscribe('g', 'new'), queen_seek('g', 'all', 'start');
ROLLBACK;
SELECT pg_temp.pending(), queen_delete_queue('g');
SELECT count(*) FROM queen_groups;
