-- Options of a group, in place of its queue's: pops and settlements of the group go by them.
\set VERBOSITY sqlstate
\pset footer off
\pset null (null)
SELECT retry_limit, lease_time FROM queen_configure('o', retry_limit => 0, lease_time => '30 s');
SELECT queen_subscribe('o', 'patient', 'all'), queen_subscribe('o', 'plain', 'all');
SELECT * FROM queen_configure_group('o', 'plain');
SELECT * FROM queen_configure_group('o', 'patient', retry_limit => 2, lease_time => '10 min', retry_delay => '1 s', max_deliveries => 4);
SELECT count(*) FROM queen_push('o', '1');

-- The lease is as long as the group says, and the budget is the group's.
SELECT lease_expires_at > now() + interval '9 min' AS is_long, lease_id FROM queen_pop('o', 'patient') \gset patient_
SELECT lease_expires_at > now() + interval '9 min' AS is_long, lease_id FROM queen_pop('o', 'plain') \gset plain_
SELECT :'patient_is_long' AS patient, :'plain_is_long' AS plain;
SELECT settled, dead_lettered FROM queen_ack(:'plain_lease_id', status => 'failed');
SELECT settled, dead_lettered FROM queen_ack(:'patient_lease_id', status => 'failed');
SELECT count(*) AS too_early FROM queen_pop('o', 'patient');
SELECT retry_delay FROM queen_configure_group('o', 'patient', retry_delay => '0');
SELECT lease_id FROM queen_pop('o', 'patient', wait => '5 s') \gset patient_
SELECT settled, dead_lettered FROM queen_ack(:'patient_lease_id', status => 'failed');
SELECT retry_limit, on_exhausted FROM queen_configure_group('o', 'patient', on_exhausted => 'drop', unset => ARRAY['retry_limit']);
SELECT outcome FROM queen_settle((SELECT lease_id FROM queen_pop('o', 'patient')), '[{"transactionId": "msg-28", "status": "failed"}]');
SELECT outcome FROM queen_pop('o', 'patient', wait => '0') AS m, queen_settle(m.lease_id, jsonb_build_array(jsonb_build_object('messageId', m.message_id, 'status', 'failed')));
SELECT consumer_group, pending, dead_letters FROM queen_groups WHERE queue = 'o' ORDER BY 1;

-- A lease that runs out, with the group's max_deliveries.
SELECT max_deliveries FROM queen_configure_group('o', 'plain', max_deliveries => 1, on_exhausted => 'dead_letter');
SELECT count(*) FROM queen_push('o', '2');
SELECT count(*) FROM queen_pop('o', 'plain', lease_time => '1 ms');
SELECT pg_sleep(0.01);
SELECT count(*) FROM queen_pop('o', 'plain');
SELECT payload, error FROM queen_dead_letters WHERE queue = 'o' AND deliveries = 1 AND payload = '2';

-- The queue changes: the group keeps what it has of its own.
SELECT retry_limit FROM queen_configure('o', retry_limit => 7, lease_time => '20 s');
SELECT retry_limit, lease_time, on_exhausted FROM queen_configure_group('o', 'patient');
SELECT retry_limit, lease_time, on_exhausted FROM queen_configure_group('o', 'patient', unset => ARRAY['lease_time', 'on_exhausted', 'retry_delay', 'max_deliveries']);

-- The ordering of a group alone; refused while it has a live lease.
SELECT count(*) FROM queen_push_batch('o', ARRAY['3', '4']::jsonb[]);
SELECT ordering FROM queen_configure_group('o', 'patient', ordering => 'none');
SELECT payload, lease_id FROM queen_pop('o', 'patient') \gset one_
SELECT payload, lease_id FROM queen_pop('o', 'patient') \gset two_
SELECT :'one_payload' AS one, :'two_payload' AS two;
SELECT queen_configure_group('o', 'patient', ordering => 'partition');
SELECT settled FROM queen_ack(:'one_lease_id');
SELECT settled FROM queen_ack(:'two_lease_id', status => 'failed');
SELECT ordering FROM queen_configure_group('o', 'patient', unset => ARRAY['ordering']);
SELECT payload, failures FROM queen_pop('o', 'patient', batch => 5);
SELECT ordering FROM queen_configure_group('o', 'plain', ordering => 'partition');
SELECT ordering FROM queen_configure('o', ordering => 'none');

-- A seek, which gives a group without order a new id, keeps them. Queue mode has options, too.
SELECT queen_subscribe('o', 'loose', 'all', ordering => 'none');
SELECT retry_limit FROM queen_configure_group('o', 'loose', retry_limit => 9);
SELECT queen_seek('o', 'loose', 'start');
SELECT retry_limit, ordering FROM queen_configure_group('o', 'loose');
SELECT queen_configure_group('o', NULL, retry_limit => 5);
SELECT count(*) FROM queen_pop('o');
SELECT consumer_group, retry_limit FROM queen_configure_group('o', NULL, retry_limit => 5);

-- It is the caller's transaction, and what is out of range is refused.
BEGIN;
SELECT retry_limit FROM queen_configure_group('o', 'loose', retry_limit => 1);
ROLLBACK;
SELECT retry_limit FROM queen_configure_group('o', 'loose');
SELECT queen_configure_group('o', 'absent');
SELECT queen_configure_group('absent', 'absent');
SELECT queen_configure_group('o', 'loose', retry_limit => -1);
SELECT queen_configure_group('o', 'loose', lease_time => '13 h');
SELECT queen_configure_group('o', 'loose', ordering => 'sideways');
SELECT queen_configure_group('o', 'loose', unset => ARRAY['retention']);
SELECT queen_configure_group('o', 'loose', unset => ARRAY['typo']);
SELECT queen_configure_group('o', 'loose', retry_limit => 1, unset => ARRAY['retry_limit']);
-- A group of a queue that does not exist yet.
SELECT queen_subscribe('later', 'early', 'all');
SELECT retry_limit, ordering FROM queen_configure_group('later', 'early', retry_limit => 8, ordering => 'none');
SELECT count(*) FROM queen_push('later', '1');
SELECT retry_limit, ordering FROM queen_configure_group('later', 'early');
SELECT payload FROM queen_pop('later', 'early');
