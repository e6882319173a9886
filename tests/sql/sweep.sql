-- queen_sweep deletes what is no longer needed, and nothing else.
\set VERBOSITY sqlstate
\pset footer off
\pset null (null)
\t on

CREATE FUNCTION pg_temp.sweep() RETURNS text LANGUAGE sql AS $$
  SELECT string_agg(task || ' ' || removed, ', ') FROM queen_sweep() WHERE removed > 0 $$;
SELECT task, removed FROM queen_sweep();
SELECT queen_sweep(0);
SELECT queen_sweep(60001);

-- Expired markers.
SELECT count(*) FROM generate_series(1, 1500) n, queen_kv_put('s', n::text, '1', ttl => '1 ms');
SELECT applied FROM queen_kv_put('s', 'stays', '1', ttl => '1 h');
SELECT pg_sleep(0.01);
SELECT pg_temp.sweep();
SELECT key FROM queen_kv_list('s');

-- transaction_ids whose window has passed: they can be pushed again.
SELECT dedup_window FROM queen_configure('w', dedup_window => '10 ms');
SELECT status FROM queen_push('w', '1', transaction_id => 'x');
SELECT status FROM queen_push('w2', '1', transaction_id => 'x');
SELECT pg_sleep(0.02);
SELECT pg_temp.sweep();
SELECT status FROM queen_push('w', '1', transaction_id => 'x');
SELECT status FROM queen_push('w2', '1', transaction_id => 'x');

-- Messages of expired leases count as pending without a pop.
SELECT count(*) FROM queen_pop('w', 'g', batch => 10, lease_time => '1 ms', subscription_mode => 'all');
SELECT pg_sleep(0.01);
SELECT pg_temp.sweep();
SELECT in_flight, retrying FROM queen_groups WHERE queue = 'w';
SELECT max(delivery_attempt) FROM queen_pop('w', 'g', batch => 10);

-- Old states of cursors are deleted: those that ended a lease an hour later, as the lease's receipt is
-- in them. The newest stays: positions, leases and budgets do not change.
SELECT count(*) FROM generate_series(1, 20) n, queen_push('p', to_jsonb(n));
DO $$ BEGIN FOR i IN 1..10 LOOP PERFORM queen_ack((SELECT lease_id FROM queen_pop('p', 'g', subscription_mode => 'all'))); END LOOP; END $$;
SELECT lease_id FROM queen_pop('p', 'g') \gset
SELECT pg_temp.sweep() ~ '^progress [0-9]+$';
SELECT count(*), count(p.ended_at) FROM queen_mq.progress p JOIN queen_mq.cursor c ON c.id = p.cursor_id
  JOIN queen_mq.consumer_group g ON g.id = c.group_id WHERE g.queue = 'p';
UPDATE queen_mq.progress SET ended_at = ended_at - interval '61 min';
SELECT pg_temp.sweep() ~ '^progress [0-9]+$';
SELECT count(*), count(p.ended_at) FROM queen_mq.progress p JOIN queen_mq.cursor c ON c.id = p.cursor_id
  JOIN queen_mq.consumer_group g ON g.id = c.group_id WHERE g.queue = 'p';
SELECT settled FROM queen_ack(:'lease_id');
SELECT payload FROM queen_pop('p', 'g', auto_ack => true);
SELECT pending FROM queen_groups WHERE queue = 'p';
SELECT pg_temp.sweep() IS NOT NULL, pg_temp.sweep();
