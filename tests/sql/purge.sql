-- A purge of one partition: its messages go, other partitions stay, and every group counts right.
\pset footer off
\set VERBOSITY sqlstate
CREATE FUNCTION pg_temp.figures() RETURNS TABLE (consumer_group text, pending bigint, in_flight bigint, retrying bigint)
LANGUAGE sql AS $$ SELECT g.consumer_group, g.pending, g.in_flight, g.retrying FROM queen_groups g WHERE queue = 'p' ORDER BY 1 $$;
CREATE FUNCTION pg_temp.drain(g text) RETURNS text LANGUAGE sql AS $$
    SELECT string_agg(partition || payload::text, ' ' ORDER BY partition, message_id)
    FROM queen_pop('p', g, batch => 100, partitions => 10, auto_ack => true) $$;

SELECT queen_subscribe('p', 'read', 'all'), queen_subscribe('p', 'unread', 'all'), queen_subscribe('p', 'new');
SELECT queen_subscribe('p', 'loose', 'all', ordering => 'none'), queen_subscribe('p', 'idle', 'all', ordering => 'none');
SELECT count(*) FROM queen_push_items((SELECT jsonb_agg(jsonb_build_object('queue', 'p', 'partition', p, 'payload', n, 'transactionId', p || n))
    FROM unnest(ARRAY['a', 'b']) AS p, generate_series(1, 6) AS n));
-- In partition a, one group has settled two, holds two and has one failed; the group without order likewise.
SELECT retry_delay FROM queen_configure('p', retry_delay => '1 h');
SELECT count(*) FROM queen_pop('p', 'read', batch => 2, partition => 'a', auto_ack => true);
SELECT min(lease_id::text) AS lease, min(message_id) AS first FROM queen_pop('p', 'read', batch => 2, partition => 'a') \gset
SELECT count(*) FROM queen_pop('p', 'loose', batch => 2, partition => 'a', auto_ack => true);
SELECT min(lease_id::text) AS loose, min(message_id) AS failing FROM queen_pop('p', 'loose', batch => 3, partition => 'a') \gset
SELECT settled FROM queen_ack(:'loose', ARRAY[:failing], 'failed');
SELECT settled FROM queen_ack(:'loose', ARRAY[:failing + 1]);
SELECT * FROM pg_temp.figures();
SELECT queen_purge('p', 'a');
SELECT * FROM pg_temp.figures();
SELECT queen_ack(:'lease');
SELECT queen_ack(:'loose');
SELECT queue, depth, partitions FROM queen_queues WHERE queue = 'p';
SELECT queen_purge('p', 'a'), queen_purge('p', 'absent');

-- Its ids are forgotten, those of the other partition are not. What is pushed after it is delivered.
SELECT status FROM queen_push('p', '7', 'a', transaction_id => 'a1');
SELECT status FROM queen_push('p', '7', 'b', transaction_id => 'b1');
SELECT * FROM pg_temp.figures();
SELECT pg_temp.drain('read'), pg_temp.drain('unread'), pg_temp.drain('new'), pg_temp.drain('loose'), pg_temp.drain('idle');
SELECT * FROM pg_temp.figures();

-- What the transaction itself has pushed goes, too, whether it has popped it, settled it or neither.
BEGIN;
SELECT count(*) FROM queen_push_batch('p', ARRAY['8', '9', '10']::jsonb[], 'a');
SELECT count(*) FROM queen_pop('p', 'read', partition => 'a', auto_ack => true);
SELECT count(*) FROM queen_pop('p', 'read', partition => 'a');
SELECT count(*) FROM queen_pop('p', 'loose', partition => 'a', auto_ack => true);
SELECT count(*) FROM queen_pop('p', 'loose', partition => 'a');
SELECT queen_purge('p', 'a');
SELECT * FROM pg_temp.figures();
COMMIT;
SELECT * FROM pg_temp.figures();
SELECT count(*) FROM queen_push('p', '11', 'a');
SELECT * FROM pg_temp.figures();

-- A replayed dead letter is for one group. The others do not count it, before or after.
SELECT min(lease_id::text) AS lease FROM queen_pop('p', 'read', partition => 'a') \gset
SELECT dead_lettered FROM queen_ack(:'lease', status => 'dead_letter');
SELECT r.transaction_id IS NOT NULL AS replayed FROM queen_dead_letters AS d, queen_dead_letter_replay(d.dead_letter_id) AS r;
SELECT * FROM pg_temp.figures();
SELECT queen_purge('p', 'a');
SELECT * FROM pg_temp.figures();

-- It can be rolled back.
SELECT count(*) FROM queen_push('p', '12', 'a');
BEGIN;
SELECT queen_purge('p', 'a');
ROLLBACK;
SELECT pg_temp.drain('read'), pg_temp.drain('idle');

SELECT queen_purge('absent', 'a');
SELECT queen_purge('p', '');
SELECT queen_purge('p'), count(*) FROM queen_messages;
