-- What users look at. consumer_group is NULL for queue mode.

-- Operators and functions are those of PostgreSQL, whatever the schema of the extension holds.
SET LOCAL search_path TO pg_catalog, pg_temp;

CREATE VIEW @extschema@.queen_messages AS
SELECT q.name AS queue,
       s.partition,
       (s.id << 9) + m.place - 1 AS message_id,
       coalesce(m.transaction_id, 'msg-' || ((s.id << 9) + m.place - 1)) AS transaction_id,
       m.payload,
       m.headers,
       s.created_at
FROM queen_mq.segment s
JOIN queen_mq.queue q ON q.id = s.queue_id
CROSS JOIN LATERAL unnest(s.payloads, s.transaction_ids, s.headers)
    WITH ORDINALITY AS m(payload, transaction_id, headers, place);
COMMENT ON VIEW @extschema@.queen_messages IS 'Every retained message';

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
COMMENT ON VIEW @extschema@.queen_dead_letters IS 'Messages that a consumer group gave up on, with their payload';

CREATE VIEW @extschema@.queen_groups AS
SELECT queue, consumer_group, pending, in_flight, retrying, dead_letters, oldest_pending_age, last_pop_at
FROM queen_mq.group_figures();
COMMENT ON VIEW @extschema@.queen_groups IS 'Consumer groups: what is pending, in flight, waiting for a retry, dead';

SET LOCAL search_path TO @extschema@, pg_temp;
