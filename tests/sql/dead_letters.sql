-- Dead letters are replayed for their own group only, and can be purged.
\set VERBOSITY sqlstate
\pset footer off
\pset null (null)
\t on

CREATE FUNCTION pg_temp.bury(worker text) RETURNS bigint LANGUAGE sql AS $$
  SELECT settled FROM queen_ack((SELECT lease_id FROM queen_pop('d', worker, partition => 'p', subscription_mode => 'all')), status => 'dead_letter', error => 'bad') $$;
CREATE FUNCTION pg_temp.pending() RETURNS text LANGUAGE sql AS $$
  SELECT string_agg(format('%s %s/%s', coalesce(consumer_group, '-'), pending, dead_letters), ', ' ORDER BY consumer_group COLLATE "C" NULLS FIRST)
  FROM queen_groups WHERE queue = 'd' $$;

SELECT count(*) FROM queen_push('d', '{"n": 1}', 'p', 'one', '{"h": 1}') a, queen_push('d', '{"n": 2}', 'p', 'two') b;
SELECT queen_subscribe('d', 'a', 'all'), queen_subscribe('d', 'b', 'all');
SELECT pg_temp.bury('a'), pg_temp.bury(NULL);
SELECT consumer_group, partition, transaction_id, payload, headers, error, failures, deliveries FROM queen_dead_letters ORDER BY dead_letter_id;
SELECT pg_temp.pending();

-- A replayed message goes to the end of its partition, as new, and to no other group.
SELECT dead_letter_id FROM queen_dead_letters WHERE consumer_group = 'a' \gset
SELECT message_id IS NOT NULL, transaction_id FROM queen_dead_letter_replay(:dead_letter_id);
SELECT * FROM queen_dead_letter_replay(:dead_letter_id);
SELECT pg_temp.pending();
SELECT transaction_id, payload, headers, delivery_attempt FROM queen_pop('d', 'a', batch => 10) ORDER BY message_id;
SELECT transaction_id, payload FROM queen_pop('d', 'b', batch => 10, auto_ack => true) ORDER BY message_id;
SELECT transaction_id FROM queen_pop('d', NULL, batch => 10, auto_ack => true) ORDER BY message_id;
-- A group that registers later does not get it, either.
SELECT transaction_id FROM queen_pop('d', 'c', batch => 10, subscription_mode => 'all', auto_ack => true) ORDER BY message_id;
SELECT pg_temp.pending();
-- A dead letter of queue mode.
SELECT dead_letter_id FROM queen_dead_letters WHERE consumer_group IS NULL \gset
SELECT transaction_id FROM queen_dead_letter_replay(:dead_letter_id);
SELECT pg_temp.pending();
SELECT transaction_id, payload FROM queen_pop('d', batch => 10, auto_ack => true);
SELECT pg_temp.pending();
SELECT queen_dead_letter_replay(NULL);
SELECT queen_dead_letter_replay(0);

-- A dead letter of a removed group cannot be replayed.
SELECT count(*) FROM queen_push('d', '3', 'p');
SELECT pg_temp.bury('b'), queen_unsubscribe('d', 'b');
SELECT dead_letter_id FROM queen_dead_letters \gset
SELECT queen_dead_letter_replay(:dead_letter_id);
SELECT count(*) FROM queen_dead_letters;
-- Purges by group, by age, and of everything.
SELECT queen_dead_letter_purge('d', 'absent'), queen_dead_letter_purge('d', older_than => '1 h'), queen_dead_letter_purge('nothing');
SELECT queen_dead_letter_purge('d', older_than => '0');
SELECT queen_dead_letter_purge('d', 'b'), queen_dead_letter_purge('d');
SELECT count(*) FROM queen_push('d', '4', 'p');
SELECT pg_temp.bury(NULL), pg_sleep(0.002);
SELECT queen_dead_letter_purge('d', older_than => '1 ms');

-- All at once: by group, by error, by age, the oldest first; a letter of a removed group stays.
SELECT queen_subscribe('r', 'a', 'all'), queen_subscribe('r', 'b', 'all'), queen_subscribe('r', 'gone', 'all');
SELECT count(*) FROM queen_push_batch('r', ARRAY['1', '2', '3', '4', '5', '6']::jsonb[]);
SELECT count(*) FROM queen_pop('r', 'a', batch => 6) AS m CROSS JOIN LATERAL
    queen_ack(m.lease_id, ARRAY[m.message_id], 'dead_letter', error => CASE WHEN m.payload::int % 2 = 0 THEN 'card declined' END);
SELECT count(*) FROM queen_pop('r', 'b', batch => 2) AS m CROSS JOIN LATERAL queen_ack(m.lease_id, ARRAY[m.message_id], 'dead_letter', error => 'timeout');
SELECT count(*) FROM queen_pop('r', 'gone') AS m CROSS JOIN LATERAL queen_ack(m.lease_id, ARRAY[m.message_id], 'dead_letter');
SELECT queen_unsubscribe('r', 'gone');
SELECT queen_dead_letter_replay_all('r', failed_before => now() - interval '1 h'), queen_dead_letter_replay_all('r', error_like => 'no such %');
SELECT queen_dead_letter_replay_all('r', 'a', 'card%', max_messages => 2);
SELECT array_agg(payload) FROM queen_pop('r', 'a', batch => 10, auto_ack => true);
SELECT queen_dead_letter_replay_all('r', max_messages => 4), queen_dead_letter_replay_all('r'), queen_dead_letter_replay_all('r');
SELECT array_agg(payload) FROM queen_pop('r', 'a', batch => 10, auto_ack => true);
SELECT array_agg(payload) FROM queen_pop('r', 'b', batch => 10, auto_ack => true);
SELECT consumer_group, payload FROM queen_dead_letters WHERE queue = 'r';
SELECT queen_dead_letter_replay_all('r', 'gone');
SELECT queen_dead_letter_replay_all('nothing');
SELECT queen_dead_letter_replay_all('r', max_messages => 0);
SELECT queen_dead_letter_replay_all('r', max_messages => 100001);
SELECT queen_dead_letter_replay_all(NULL);
SELECT queen_dead_letter_replay_all('r', '');
