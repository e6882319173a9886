-- queen_pause and queen_resume.
\set VERBOSITY sqlstate
\pset footer off
\pset null (null)

SELECT queen_pause('q');
SELECT queen_resume('q');
SELECT status FROM queen_push('q', '1');
SELECT queen_pause('q', 'g');
SELECT queen_subscribe('q', 'g', 'all'), queen_subscribe('q', 'other', 'all');

-- One group.
SELECT queen_pause('q', 'g') AS first, queen_pause('q', 'g') AS second;
SELECT count(*) FROM queen_pop('q', 'g');
SELECT payload FROM queen_pop('q', 'other');
SELECT queue, paused FROM queen_queues;
SELECT consumer_group, paused, pending FROM queen_groups ORDER BY 1;

-- The queue, with the group that is paused by itself.
SELECT queen_pause('q') AS first, queen_pause('q') AS second;
SELECT queen_subscribe('q', 'young', 'all');
SELECT count(*) FROM queen_pop('q', 'young');
SELECT count(*) FROM queen_pop('q');
CALL queen_wait('q', 'young', '0');
SELECT queue, paused FROM queen_queues;
SELECT consumer_group, paused, pending FROM queen_groups ORDER BY 1;
-- The lease of the other group goes on.
SELECT lease_id FROM queen_leases WHERE queue = 'q' \gset
SELECT queen_extend(:'lease_id', '5 min') > now() + interval '4 min' AS is_longer;
SELECT settled FROM queen_ack(:'lease_id');
SELECT status FROM queen_push('q', '2');
-- Timers wait for the resume, or for a sweep.
SELECT status FROM queen_push('q', '3', delay => '1 ms');
SELECT pg_sleep(0.01);
SELECT count(*) FROM queen_pop('q', 'young');
SELECT payload FROM queen_timers;
SELECT removed FROM queen_sweep() WHERE task = 'timers';
-- Options are another matter.
SELECT retry_limit FROM queen_configure('q', retry_limit => 1, reset => true);
SELECT retry_limit FROM queen_configure_group('q', 'g', retry_limit => 2);
SELECT paused FROM queen_queues;

SELECT queen_resume('q') AS first, queen_resume('q') AS second;
SELECT payload FROM queen_pop('q', 'young', batch => 9);
SELECT count(*) FROM queen_pop('q', 'g');
CALL queen_wait('q', 'g', '0');
SELECT queen_resume('q', 'g') AS first, queen_resume('q', 'g') AS second;
CALL queen_wait('q', 'g', '0');
SELECT payload FROM queen_pop('q', 'g', batch => 9);
SELECT bool_or(paused) AS paused FROM queen_groups;

-- It is the caller's transaction.
BEGIN;
SELECT queen_pause('q');
SELECT count(*) FROM queen_pop('q', 'other', batch => 9);
ROLLBACK;
SELECT count(*) FROM queen_pop('q', 'other', batch => 9);

-- What is not there, or not a name. A group that is registered anew is not paused.
SELECT queen_pause('absent');
SELECT queen_pause('absent', 'g');
SELECT queen_pause('q', 'absent');
SELECT queen_resume('q', 'absent');
SELECT queen_pause(NULL);
SELECT queen_pause('q', '');
SELECT queen_pause('q', 'g'), queen_unsubscribe('q', 'g'), queen_subscribe('q', 'g', 'all');
SELECT payload FROM queen_pop('q', 'g');
