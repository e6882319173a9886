-- The views for users. In all of them, consumer_group is NULL for queue mode.
--
-- Each shows the rows of those queues on which its reader has a privilege: monitor, or, where it
-- shows payloads, pop. In a view that is a security_barrier, that is asked before any condition of
-- the reader's is evaluated, if such a condition could tell what it was shown. Whether the reader
-- may see all queues is asked once for each statement.

-- With this search_path, operators and functions in the views are those of PostgreSQL, even if the
-- schema of the extension has others of these names.
SET LOCAL search_path TO pg_catalog, pg_temp;

CREATE VIEW @extschema@.queen_messages WITH (security_barrier) AS
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
    WITH ORDINALITY AS m(payload, transaction_id, headers, place)
WHERE ((SELECT queen_mq.sees(NULL, 'pop')) OR queen_mq.sees(q.name, 'pop'));
COMMENT ON VIEW @extschema@.queen_messages IS 'Every message in the log, settled or not';

CREATE VIEW @extschema@.queen_dead_letters WITH (security_barrier) AS
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
FROM queen_mq.dead_letter
WHERE ((SELECT queen_mq.sees(NULL, 'pop')) OR queen_mq.sees(queue, 'pop'));
COMMENT ON VIEW @extschema@.queen_dead_letters IS 'Messages that a consumer group has given up, with their payload';

-- The functions below are called for each queue, or each group, that the query asks for. The
-- functions are declared as costly, so that the planner joins other tables first, and calls them for
-- what is left.
--
-- They return no row for a queue that the reader may not see. All columns but consumer_group need a
-- row of theirs, so no condition of the reader's is evaluated on anything else: hence the CASE
-- expressions, whose conditions are always true. Each view says that its column queue is the one of
-- the table. So an equality of the reader's on queue, with a value or in a join, is one on the table,
-- which PostgreSQL evaluates first. (In a security_barrier, a join would not be.) A condition on
-- consumer_group is evaluated before the functions are called, too: it is NULL there for a group of a
-- queue that the reader may not see.
ALTER FUNCTION queen_mq.group_figures(text, text) COST 10000 ROWS 1;
ALTER FUNCTION queen_mq.queue_figures(text) COST 10000 ROWS 1;
ALTER FUNCTION queen_mq.live_leases(text, text) COST 10000 ROWS 10;
ALTER FUNCTION queen_mq.blocked_partitions(text, text) COST 10000 ROWS 10;

CREATE VIEW @extschema@.queen_groups AS
SELECT CASE WHEN f.pending IS NOT NULL THEN g.queue END AS queue,
       CASE WHEN (SELECT queen_mq.sees(NULL, 'monitor')) OR queen_mq.sees(g.queue, 'monitor')
            THEN nullif(g.name, '') END AS consumer_group,
       f.pending,
       f.in_flight,
       f.retrying,
       f.dead_letters,
       f.oldest_pending_age,
       f.last_pop_at,
       f.options,
       CASE WHEN f.pending IS NOT NULL THEN g.paused OR EXISTS (
           SELECT FROM queen_mq.queue q WHERE q.name = g.queue AND q.paused) END AS paused
FROM queen_mq.consumer_group g
CROSS JOIN LATERAL queen_mq.group_figures(g.queue, g.name) f
WHERE CASE WHEN f.pending IS NOT NULL THEN g.queue END = g.queue;
COMMENT ON VIEW @extschema@.queen_groups IS 'Consumer groups: how many messages are pending, in flight, waiting for a retry, or dead letters, and the options in effect';

CREATE VIEW @extschema@.queen_queues AS
SELECT CASE WHEN f.depth IS NOT NULL THEN q.name END AS queue,
       f.options,
       f.depth,
       f.bytes,
       f.oldest_age,
       f.partitions,
       f.groups,
       CASE WHEN f.depth IS NOT NULL THEN q.paused END AS paused
FROM queen_mq.queue q
CROSS JOIN LATERAL queen_mq.queue_figures(q.name) f
WHERE CASE WHEN f.depth IS NOT NULL THEN q.name END = q.name;
COMMENT ON VIEW @extschema@.queen_queues IS 'Queues: the options in effect, how many messages wait, and what the log holds';

CREATE VIEW @extschema@.queen_leases AS
SELECT CASE WHEN f.lease_id IS NOT NULL THEN g.queue END AS queue,
       CASE WHEN (SELECT queen_mq.sees(NULL, 'monitor')) OR queen_mq.sees(g.queue, 'monitor')
            THEN nullif(g.name, '') END AS consumer_group,
       f.partition,
       f.lease_id,
       f.expires_at,
       f.messages,
       f.delivery_attempt
FROM queen_mq.consumer_group g
CROSS JOIN LATERAL queen_mq.live_leases(g.queue, g.name) f
WHERE CASE WHEN f.lease_id IS NOT NULL THEN g.queue END = g.queue;
COMMENT ON VIEW @extschema@.queen_leases IS 'Live leases, a row for each leased partition';

CREATE VIEW @extschema@.queen_blocked AS
SELECT CASE WHEN f.partition IS NOT NULL THEN g.queue END AS queue,
       CASE WHEN (SELECT queen_mq.sees(NULL, 'monitor')) OR queen_mq.sees(g.queue, 'monitor')
            THEN nullif(g.name, '') END AS consumer_group,
       f.partition,
       f.message_id,
       f.transaction_id,
       f.state,
       f.delivery_attempt,
       f.failures,
       f.last_error,
       f.due_at
FROM queen_mq.consumer_group g
CROSS JOIN LATERAL queen_mq.blocked_partitions(g.queue, g.name) f
WHERE CASE WHEN f.partition IS NOT NULL THEN g.queue END = g.queue;
COMMENT ON VIEW @extschema@.queen_blocked IS
    'Partitions of ordered groups whose first message is leased or is to be delivered again, and what its last failure said';

CREATE VIEW @extschema@.queen_timers WITH (security_barrier) AS
SELECT q.name AS queue,
       CASE WHEN NOT starts_with(t.timer_key, E'\x01') THEN t.timer_key END AS timer_key,
       t.partition,
       t.transaction_id,
       t.deliver_at,
       t.payload,
       t.headers
FROM queen_mq.timer t
JOIN queen_mq.queue q ON q.id = t.queue_id
WHERE t.schedule IS NULL
  AND ((SELECT queen_mq.sees(NULL, 'pop')) OR queen_mq.sees(q.name, 'pop'));
COMMENT ON VIEW @extschema@.queen_timers IS
    'Messages that enter the log later. A push with a delay has no timer_key.';

CREATE VIEW @extschema@.queen_schedules WITH (security_barrier) AS
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
WHERE t.schedule IS NOT NULL
  AND ((SELECT queen_mq.sees(NULL, 'pop')) OR queen_mq.sees(q.name, 'pop'));
COMMENT ON VIEW @extschema@.queen_schedules IS
    'Messages that recur: when each comes next, and when it came last';

CREATE VIEW @extschema@.queen_bindings WITH (security_barrier) AS
SELECT pattern, queue
FROM queen_mq.binding
WHERE ((SELECT queen_mq.sees(NULL, 'monitor')) OR queen_mq.sees(queue, 'monitor'));
COMMENT ON VIEW @extschema@.queen_bindings IS 'Which queues get what is published on which topics';

-- Its readers see what was granted to themselves, and to the roles whose privileges they have.
CREATE VIEW @extschema@.queen_grants WITH (security_barrier) AS
SELECT r.rolname::text AS role,
       g.privilege,
       CASE WHEN g.privilege NOT IN ('read', 'write') THEN nullif(g.target, '') END AS queue,
       CASE WHEN g.privilege IN ('read', 'write') THEN nullif(g.target, '') END AS namespace
FROM queen_mq.grants g
JOIN pg_roles r ON r.oid = g.role_oid
WHERE g.installation = (SELECT id FROM queen_mq.installation)
  AND ((SELECT queen_mq.sees(NULL, 'owner')) OR pg_has_role(g.role_oid, 'USAGE'));
COMMENT ON VIEW @extschema@.queen_grants IS
    'Which role has which privilege, on which queue or namespace; NULL: on all of them';

SET LOCAL search_path TO @extschema@, pg_temp;
