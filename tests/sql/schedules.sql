-- Messages that recur: queen_every and the view queen_schedules.
\set VERBOSITY terse
\pset footer off
\pset null (null)
\t on

-- The transaction_id of an occurrence.
CREATE FUNCTION pg_temp.id(key text, moment timestamptz) RETURNS text LANGUAGE sql SET timezone = 'UTC' AS $$
  SELECT key || '@' || replace(to_jsonb(moment) #>> '{}', '+00:00', 'Z') $$;
CREATE FUNCTION pg_temp.read() RETURNS text LANGUAGE sql AS $$
  SELECT string_agg(format('%s %s %s %s', partition, transaction_id, payload, headers), ', ' ORDER BY message_id)
  FROM queen_pop('t', batch => 100, partitions => 10, auto_ack => true) $$;

-- By a cron expression in UTC. The queue is created.
SELECT status, next_at > now(), extract(epoch FROM next_at)::int % 86400 FROM queen_every('t', 'nightly', '30 4 * * *', '{"job": 1}');
SELECT queue, timer_key, schedule, time_zone, extract(epoch FROM next_at)::int % 86400, last_at, partition, payload, headers FROM queen_schedules;
SELECT count(*) FROM queen_timers;
-- In a time zone: 04:30 in India is 23:00 UTC, all year.
SELECT status, extract(epoch FROM next_at)::int % 86400 FROM queen_every('t', 'nightly', '30 4 * * *', '2', time_zone => 'asia/kolkata');
SELECT time_zone, payload FROM queen_schedules;
-- At an interval, from the registration on.
SELECT status, abs(extract(epoch FROM next_at - clock_timestamp() - '90 minutes')) < 5 FROM queen_every('t', 'often', '90 minutes', '3', 'p', '{"h": 1}');
SELECT status, abs(extract(epoch FROM next_at - clock_timestamp() - '1 day 1 s')) < 5 FROM queen_every('t', 'often', 'P1DT1S', '3', 'p', '{"h": 1}');
-- Registered again with an equal schedule, it goes on as it did, with the new content.
SELECT next_at AS next_before FROM queen_schedules WHERE timer_key = 'often' \gset
SELECT status, next_at = :'next_before' FROM queen_every('t', 'often', 'P1DT1S', '4', 'p', '{"h": 2}');
SELECT status, next_at > :'next_before' FROM queen_every('t', 'often', 'P1DT2S', '4', 'p', '{"h": 2}');
SELECT schedule, payload, headers FROM queen_schedules WHERE timer_key = 'often';

-- A key names a message that comes once, or one that recurs: each replaces the other.
SELECT status FROM queen_schedule('t', 'either', '5', delay => '1 h');
SELECT status FROM queen_every('t', 'either', '@hourly', '6');
SELECT (SELECT count(*) FROM queen_timers), (SELECT count(*) FROM queen_schedules);
SELECT status FROM queen_schedule('t', 'either', '5', delay => '1 h');
SELECT (SELECT count(*) FROM queen_timers), (SELECT count(*) FROM queen_schedules);
SELECT queen_cancel('t', 'either'), queen_cancel('t', 'often'), queen_cancel('t', 'often');
SELECT queen_tx_commit(timers => '[{"op": "cancel", "queue": "t", "timerKey": "nightly"}]') #>> '{results,0,status}';
SELECT (SELECT count(*) FROM queen_timers), (SELECT count(*) FROM queen_schedules);

-- An occurrence comes when it is due, under its own transaction_id, and the next one is known.
SELECT status FROM queen_every('t', 'tick', '1 second', '7', 'p', '{"h": 3}');
SELECT next_at AS first FROM queen_schedules \gset
SELECT pg_temp.read();
SELECT payload, partition, headers, transaction_id = pg_temp.id('tick', :'first'), created_at >= :'first'
  FROM queen_pop('t', wait => '5 s', auto_ack => true);
SELECT last_at = :'first', next_at = timestamptz :'first' + '1 s' FROM queen_schedules;
-- What is missed comes once, for the newest time. Here the clock is not set on: the timer is set back.
SELECT queen_cancel('t', 'tick'), status FROM queen_every('t', 'hour', '1 hour', '8');
UPDATE queen_mq.timer SET deliver_at = deliver_at - interval '10 hours 15 minutes';
SELECT next_at AS due FROM queen_schedules \gset
SELECT count(*), min(transaction_id) = pg_temp.id('hour', timestamptz :'due' + '9 hours')
  FROM queen_pop('t', batch => 100, auto_ack => true);
SELECT last_at = timestamptz :'due' + '9 hours', next_at = timestamptz :'due' + '10 hours' FROM queen_schedules;
-- The id of an occurrence that is pushed by hand within the dedup_window makes it a duplicate.
UPDATE queen_mq.timer SET deliver_at = clock_timestamp();
SELECT status FROM queen_schedules, LATERAL queen_push('t', '"by hand"', transaction_id => pg_temp.id('hour', next_at));
SELECT payload FROM queen_pop('t', batch => 10, auto_ack => true);
SELECT last_at IS NOT NULL, next_at > clock_timestamp() FROM queen_schedules;
-- The sweep moves it, too. A purge keeps it, and a rollback brings it back.
UPDATE queen_mq.timer SET deliver_at = clock_timestamp();
SELECT removed FROM queen_sweep() WHERE task = 'timers';
SELECT removed FROM queen_sweep() WHERE task = 'timers';
SELECT queen_purge('t') > 0, count(*) FROM queen_schedules;
BEGIN;
UPDATE queen_mq.timer SET deliver_at = clock_timestamp();
SELECT count(*) FROM queen_pop('t', auto_ack => true);
SELECT queen_cancel('t', 'hour');
ROLLBACK;
SELECT count(*), min(payload::text) FROM queen_schedules;
-- A time zone that is not known any more: it comes, with a warning, and not again before it is set anew.
SELECT status FROM queen_every('t', 'hour', '@hourly', '9');
UPDATE queen_mq.timer SET deliver_at = '2026-01-01 00:00:00Z', time_zone = 'Europe/Atlantis';
SELECT pg_temp.read();
SELECT next_at, last_at FROM queen_schedules;
SELECT pg_temp.read();
UPDATE queen_mq.timer SET time_zone = 'UTC';
SELECT status, isfinite(next_at) FROM queen_every('t', 'hour', '@hourly', '9');

-- Calls that are refused.
\set VERBOSITY default
SELECT queen_every('t', 'k', '61 * * * *', '1');
SELECT queen_every('t', 'k', '* * * * mon,', '1');
SELECT queen_every('t', 'k', '0 0 30 feb *', '1');
SELECT queen_every('t', 'k', '@reboot', '1');
SELECT queen_every('t', 'k', '* * * *', '1');
SELECT queen_every('t', 'k', 'often', '1');
SELECT queen_every('t', 'k', '999 ms', '1');
SELECT queen_every('t', 'k', '-1 hour', '1');
SELECT queen_every('t', 'k', '102 years', '1');
SELECT queen_every('t', 'k', '', '1');
SELECT queen_every('t', 'k', NULL, '1');
SELECT queen_every('t', 'k', E'0\t0 * * *', '1');
SELECT queen_every('t', 'k', '@daily', NULL);
SELECT queen_every('t', 'k', '@daily', '1', time_zone => 'Europe/Atlantis');
SELECT queen_every('t', 'k', '@daily', '1', time_zone => 'CEST');
SELECT queen_every('t', repeat('x', 991), '@daily', '1');
SET queen_mq.auto_create = off;
SELECT queen_every('unknown', 'k', '@daily', '1');
RESET queen_mq.auto_create;
SELECT status FROM queen_every('t', repeat('x', 990), '@daily', '1', NULL, NULL, NULL);
-- A removed queue loses its schedules.
SELECT queen_delete_queue('t');
SELECT count(*) FROM queen_schedules;
