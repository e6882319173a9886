-- What tests/upgrade/*.sql hold: the data of a version of queen_mq, as pg_dump --data-only --inserts
-- writes it. Run in a database with that version, when it is released:
--
--   psql -f tests/upgrade/fill.sql && pg_dump --data-only --inserts | grep -v '^\\' > tests/upgrade/$VERSION.sql
--
-- Each later version must upgrade it, and go on from it: tests/concurrency/tests/upgrade_versions.rs.
SELECT queen_configure('orders', retry_limit => 5, retry_delay => '1 second'), queen_subscribe('orders', 'billing', 'all');
SELECT queen_configure('mails', ordering => 'none', retry_delay => '1 second'), queen_subscribe('mails', 'sender', 'all');

-- Partition a: 1 and 2 are settled, 3 is held, 4 to 6 have not been popped. 1 has an id of its own.
SELECT queen_push_batch('orders', ARRAY['1', '2', '3', '4', '5', '6']::jsonb[], 'a', ARRAY['once', NULL, NULL, NULL, NULL, NULL]);
SELECT queen_ack(lease_id) FROM (SELECT DISTINCT lease_id FROM queen_pop('orders', 'billing', 2, 'a')) AS l;
SELECT count(*) FROM queen_pop('orders', 'billing', 1, 'a', lease_time => '12 hours');
-- Partition b: 11 has failed once. Partition c: 21 was given up. Partitions d and e: one lease over both.
SELECT queen_push_batch('orders', ARRAY['11', '12']::jsonb[], 'b', headers => ARRAY['{"h": 1}', NULL]::jsonb[]);
SELECT queen_ack(lease_id, status => 'failed', error => 'declined') FROM queen_pop('orders', 'billing', 1, 'b');
SELECT queen_push('orders', '21', 'c');
SELECT queen_ack(lease_id, status => 'dead_letter', error => 'hopeless') FROM queen_pop('orders', 'billing', 1, 'c');
SELECT queen_push('orders', '31', 'd'), queen_push('orders', '41', 'e');
SELECT count(*) FROM queen_pop('orders', 'billing', 10, partitions => 2, lease_time => '12 hours');
-- Without order: 51 is settled, 52 has failed, 53 is held, 54 has not been popped.
SELECT queen_push_batch('mails', ARRAY['51', '52', '53', '54']::jsonb[]);
SELECT queen_ack(lease_id, status => CASE payload WHEN '52' THEN 'failed' ELSE 'completed' END)
FROM (SELECT lease_id, payload FROM queen_pop('mails', 'sender') UNION ALL SELECT lease_id, payload FROM queen_pop('mails', 'sender')) AS m;
SELECT count(*) FROM queen_pop('mails', 'sender', lease_time => '12 hours');

-- Timers, one of them due by now wherever this is read; and markers.
SELECT queen_schedule('orders', 'later', '61', delay => '366 days', partition => 'f'), queen_push('orders', '62', 'g', 'delayed', delay => '1 ms');
SELECT queen_kv_put('orders', 'charge:1', '{"id": "ch_1"}', forever => true), queen_kv_incr('orders', 'count', 7, forever => true);
