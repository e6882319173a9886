-- The views for users. In all of them, consumer_group is NULL for queue mode.

-- With this search_path, operators and functions in the views are those of PostgreSQL, even if the
-- schema of the extension has others of these names.
SET LOCAL search_path TO pg_catalog, pg_temp;

CREATE VIEW @extschema@.queen_messages AS
SELECT q.name AS queue,
       s.partition,
       s.id * 28 + m.place - 1 AS message_id,
       coalesce(m.transaction_id, 'msg-' || (s.id * 28 + m.place - 1)) AS transaction_id,
       m.payload,
       m.headers,
       s.created_at
FROM queen_mq.segment s
JOIN queen_mq.queue q ON q.id = s.queue_id
CROSS JOIN LATERAL unnest(s.payloads, s.transaction_ids, s.headers)
    WITH ORDINALITY AS m(payload, transaction_id, headers, place);
COMMENT ON VIEW @extschema@.queen_messages IS 'Every message in the log, settled or not';

CREATE VIEW @extschema@.queen_dead_letters AS
SELECT id AS dead_letter_id,
       queue,
       nullif(consumer_group, '') AS consumer_group,
       partition,
       message_id,
       transaction_id,
       payload,
       headers,
       error,
       failures,
       deliveries,
       created_at,
       failed_at
FROM queen_mq.dead_letter;
COMMENT ON VIEW @extschema@.queen_dead_letters IS 'Messages that a consumer group has given up, with their payload';

-- The functions below are called for each queue, or each group, that the query asks for: conditions
-- on these columns are conditions on the tables. The functions are declared as costly, so that the
-- planner joins other tables first, and calls them for what is left.
ALTER FUNCTION queen_mq.group_figures(text, text) COST 10000 ROWS 1;
ALTER FUNCTION queen_mq.queue_figures(text) COST 10000 ROWS 1;
ALTER FUNCTION queen_mq.live_leases(text, text) COST 10000 ROWS 10;

CREATE VIEW @extschema@.queen_groups AS
SELECT g.queue,
       nullif(g.name, '') AS consumer_group,
       f.pending,
       f.in_flight,
       f.retrying,
       f.dead_letters,
       f.oldest_pending_age,
       f.last_pop_at,
       f.options,
       g.paused OR EXISTS (
           SELECT FROM queen_mq.queue q WHERE q.name = g.queue AND q.paused) AS paused
FROM queen_mq.consumer_group g
CROSS JOIN LATERAL queen_mq.group_figures(g.queue, g.name) f;
COMMENT ON VIEW @extschema@.queen_groups IS 'Consumer groups: how many messages are pending, in flight, waiting for a retry, or dead letters, and the options in effect';

CREATE VIEW @extschema@.queen_queues AS
SELECT q.name AS queue,
       f.options,
       f.depth,
       f.bytes,
       f.oldest_age,
       f.partitions,
       f.groups,
       q.paused
FROM queen_mq.queue q
CROSS JOIN LATERAL queen_mq.queue_figures(q.name) f;
COMMENT ON VIEW @extschema@.queen_queues IS 'Queues: the options in effect, how many messages wait, and what the log holds';

CREATE VIEW @extschema@.queen_leases AS
SELECT g.queue,
       nullif(g.name, '') AS consumer_group,
       f.partition,
       f.lease_id,
       f.expires_at,
       f.messages,
       f.delivery_attempt
FROM queen_mq.consumer_group g
CROSS JOIN LATERAL queen_mq.live_leases(g.queue, g.name) f;
COMMENT ON VIEW @extschema@.queen_leases IS 'Live leases, a row for each leased partition';

CREATE VIEW @extschema@.queen_timers AS
SELECT q.name AS queue,
       CASE WHEN NOT starts_with(t.timer_key, E'\x01') THEN t.timer_key END AS timer_key,
       t.partition,
       t.transaction_id,
       t.deliver_at,
       t.payload,
       t.headers
FROM queen_mq.timer t
JOIN queen_mq.queue q ON q.id = t.queue_id
WHERE t.schedule IS NULL;
COMMENT ON VIEW @extschema@.queen_timers IS
    'Messages that enter the log later. A push with a delay has no timer_key.';

CREATE VIEW @extschema@.queen_schedules AS
SELECT q.name AS queue,
       t.timer_key,
       t.schedule,
       t.time_zone,
       t.deliver_at AS next_at,
       t.last_at,
       t.partition,
       t.payload,
       t.headers
FROM queen_mq.timer t
JOIN queen_mq.queue q ON q.id = t.queue_id
WHERE t.schedule IS NOT NULL;
COMMENT ON VIEW @extschema@.queen_schedules IS
    'Messages that recur: when each comes next, and when it came last';

CREATE VIEW @extschema@.queen_bindings AS
SELECT pattern, queue
FROM queen_mq.binding;
COMMENT ON VIEW @extschema@.queen_bindings IS 'Which queues get what is published on which topics';

SET LOCAL search_path TO @extschema@, pg_temp;
