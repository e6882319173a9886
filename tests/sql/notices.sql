-- First steps that do not trip: what a pop says beside its rows.
\set VERBOSITY default

-- A queue that does not exist, each name once in a session.
SELECT count(*) FROM queen_pop('n');
SELECT count(*) FROM queen_pop('n');
SELECT count(*) FROM queen_pop('n', 'early');
SELECT count(*) FROM queen_pop('m');

-- A group that begins after what is there; and none where there is nothing, or for queue mode.
SELECT count(*) FROM queen_push_batch('n', ARRAY['1', '2']::jsonb[]);
SELECT count(*) FROM queen_pop('n', 'late');
SELECT count(*) FROM queen_pop('n', 'late');
SELECT count(*) FROM queen_pop('n', 'all', subscription_mode => 'all');
SELECT count(*) FROM queen_pop('n', 'since', subscription_from => now() - interval '1 h');
SELECT count(*) FROM queen_pop('n');
CALL queen_wait('n', 'waits', '0');
SELECT queen_purge('n');
SELECT count(*) FROM queen_pop('n', 'after');

-- A group whose mode is not the one that the call asks for, once in a session.
SELECT count(*) FROM queen_pop('n', 'late', subscription_mode => 'all');
SELECT count(*) FROM queen_pop('n', 'late', subscription_mode => 'all');
SELECT count(*) FROM queen_pop('n', 'late', subscription_mode => 'new');
SELECT count(*) FROM queen_pop('n', 'all', subscription_mode => 'all');
SELECT count(*) FROM queen_pop('n', 'all', subscription_mode => 'new');
SELECT count(*) FROM queen_pop('n', 'since', subscription_from => '2020-01-01');
SELECT count(*) FROM queen_pop('n', 'since');
SELECT count(*) FROM queen_pop('n', subscription_mode => 'new');

-- A call that is rolled back registers nothing, and says it again.
SELECT count(*) FROM queen_push('n', '3');
BEGIN;
SELECT count(*) FROM queen_pop('n', 'undone');
ROLLBACK;
SELECT count(*) FROM queen_pop('n', 'undone');

-- Nothing of this for who does not want to hear it.
SET client_min_messages = warning;
SELECT count(*) FROM queen_pop('x');
SELECT count(*) FROM queen_pop('n', 'silent');
