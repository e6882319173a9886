-- Push: statuses, deduplication, batches, and what is refused.
\set VERBOSITY sqlstate
\pset footer off

SELECT message_id > 0 AS has_id, transaction_id, status FROM queen_push('push', '{"n": 1}', transaction_id => 'a');
SELECT message_id AS first_id FROM queen_messages WHERE transaction_id = 'a' \gset

-- A repeated transaction_id writes nothing and returns the original message. In another partition or
-- queue it is another message.
SELECT message_id = :first_id AS original, transaction_id, status FROM queen_push('push', '{"n": 2}', transaction_id => 'a');
SELECT status FROM queen_push('push', '3', partition => 'other', transaction_id => 'a');
SELECT status FROM queen_push('push too', '4', transaction_id => 'a');

-- Without a transaction_id it is made from the message_id.
SELECT transaction_id LIKE '%' || message_id AS derived, status FROM queen_push('push', '5');

-- NULL for an argument with a default means the default. JSON null is a payload.
SELECT status FROM queen_push('push', 'null', partition => NULL, headers => '{"trace": "x"}');
SELECT queue, partition, payload, headers, message_id < 2::numeric ^ 53 AS fits
FROM queen_messages WHERE queue = 'push' ORDER BY partition, message_id;

-- A batch is answered in its order, counted from 1. Of two equal ids the first is queued.
SELECT ordinal, status, transaction_id FROM queen_push_batch('batch', ARRAY['1', '2', '3', '4']::jsonb[],
  transaction_ids => ARRAY['x', 'y', 'x', NULL], headers => ARRAY[NULL, '{"h": 1}', NULL, NULL]::jsonb[])
WHERE transaction_id IN ('x', 'y') ORDER BY ordinal;
SELECT ordinal, status FROM queen_push_batch('batch', ARRAY['5', '6']::jsonb[], transaction_ids => ARRAY['y', 'z']);
SELECT payload, headers FROM queen_messages WHERE queue = 'batch' ORDER BY message_id;
SELECT count(*) AS of_an_empty_batch FROM queen_push_batch('batch', '{}');

-- Items may go to several queues and partitions.
SELECT ordinal, transaction_id, status FROM queen_push_items('[
  {"queue": "items", "payload": 1, "partition": "p", "transactionId": "i1"},
  {"queue": "items too", "payload": null, "transactionId": "i2", "headers": {"h": 1}},
  {"queue": "items", "payload": 3, "partition": "p", "transactionId": "i1"}]');
SELECT queue, partition, payload, headers FROM queen_messages WHERE queue LIKE 'items%' ORDER BY queue, message_id;
SELECT count(*) AS of_no_items FROM queen_push_items('[]');

-- Without a window, duplicates are found only within one call.
SELECT dedup_window FROM queen_configure('forgetful', dedup_window => '0');
SELECT status FROM queen_push('forgetful', '1', transaction_id => 'a');
SELECT status FROM queen_push('forgetful', '1', transaction_id => 'a');
SELECT status FROM queen_push_batch('forgetful', ARRAY['1', '2']::jsonb[], transaction_ids => ARRAY['b', 'b']);

-- What is rolled back was never pushed, and its transaction_id is free.
BEGIN;
SAVEPOINT before;
SELECT status FROM queen_push('push', '6', transaction_id => 'undone');
ROLLBACK TO SAVEPOINT before;
SELECT status FROM queen_push('push', '7', transaction_id => 'undone');
ROLLBACK;
SELECT status FROM queen_push('push', '8', transaction_id => 'undone');

-- All of these are refused with 22023, and nothing is written.
SELECT count(*) AS before FROM queen_messages \gset
SELECT queen_push('', '1');
SELECT queen_push(NULL, '1');
SELECT queen_push(repeat('q', 256), '1');
SELECT queen_push(E'a\nb', '1');
SELECT queen_push('push', NULL);
SELECT queen_push('push', '1', partition => '');
SELECT queen_push('push', '1', partition => E'a\x7f');
SELECT queen_push('push', '1', transaction_id => '');
SELECT queen_push('push', '1', transaction_id => repeat('t', 1025));
SELECT queen_push('push', to_jsonb(repeat('x', 16 * 1024 * 1024)));
SELECT queen_push_batch('push', ARRAY['1', NULL]::jsonb[]);
SELECT queen_push_batch('push', NULL);
SELECT queen_push_batch('push', ARRAY['1']::jsonb[], transaction_ids => ARRAY['a', 'b']);
SELECT queen_push_batch('push', ARRAY['1']::jsonb[], headers => ARRAY['1', '2']::jsonb[]);
SELECT queen_push_batch('push', ARRAY[['1', '2'], ['3', '4']]::jsonb[]);
SELECT queen_push_items('{}');
SELECT queen_push_items('[{"queue": "push"}]');
SELECT queen_push_items('[{"payload": 1}]');
SELECT queen_push_items('[{"queue": "push", "payload": 1, "transactionID": "typo"}]');
SELECT queen_push_items('[{"queue": "push", "payload": 1}, 2]');
SELECT count(*) - :before AS written FROM queen_messages;

-- Values at the limits are accepted.
SELECT status FROM queen_push(repeat('q', 255), '1', partition => repeat('p', 255), transaction_id => repeat('t', 1024));

-- NULL is nothing to push: array_agg and jsonb_agg return it where there are no rows.
SELECT count(*) FROM queen_push_items((SELECT jsonb_agg(x) FROM unnest('{}'::jsonb[]) AS x));
SELECT count(*) FROM queen_push_batch('push', (SELECT array_agg(x) FROM unnest('{}'::jsonb[]) AS x));
SELECT queen_push_batch(NULL, NULL);

-- A duplicate is one, also where the queue is full. A call with a new message in it is refused.
SELECT max_depth FROM queen_configure('full', max_depth => 2);
SELECT status FROM queen_push_batch('full', ARRAY['1', '2']::jsonb[], transaction_ids => ARRAY['f1', 'f2']);
SELECT status FROM queen_push('full', '1', transaction_id => 'f1');
SELECT status FROM queen_push('full', '1', transaction_id => 'f1', delay => '1 h');
SELECT status FROM queen_push_batch('full', ARRAY['1', '2', '2']::jsonb[], transaction_ids => ARRAY['f1', 'f2', 'f2']);
SELECT status FROM queen_push('full', '3');
SELECT status FROM queen_push('full', '3', transaction_id => 'f3');
SELECT status FROM queen_push('full', '1', partition => 'other', transaction_id => 'f1');
SELECT status FROM queen_push_batch('full', ARRAY['1', '3']::jsonb[], transaction_ids => ARRAY['f1', 'f3']);

-- After a purge the same transaction_ids are stored again; in other queues they are remembered.
SELECT status FROM queen_push('kept', '1', transaction_id => 'f1');
SELECT queen_purge('full');
SELECT status FROM queen_push('full', '1', transaction_id => 'f1');
SELECT status FROM queen_push('kept', '1', transaction_id => 'f1');

-- A push with a delay admits its transaction_id at once. The original is told apart from its twins
-- when it comes: it is delivered, and they have its id.
SELECT status FROM queen_push('soon', '1', transaction_id => 's', delay => '50 ms');
SELECT message_id, status FROM queen_push('soon', '2', transaction_id => 's');
SELECT message_id, status FROM queen_push('soon', '3', transaction_id => 's', delay => '1 h');
SELECT message_id, status FROM queen_push_batch('soon', ARRAY['4']::jsonb[], transaction_ids => ARRAY['s']);
SELECT status FROM queen_push('soon', '5', partition => 'other', transaction_id => 's');
-- A purge takes no message that waits for its delay, and so remembers it.
SELECT queen_purge('soon');
SELECT message_id, status FROM queen_push('soon', '6', transaction_id => 's');
SELECT payload, transaction_id, message_id AS original FROM queen_pop('soon', wait => '5 s') \gset
SELECT :'payload' AS payload, :'transaction_id' AS transaction_id;
SELECT status, message_id = :original AS has_its_id FROM queen_push('soon', '7', transaction_id => 's');
-- If the window is over before the message comes, a later push of the id is a message of its own. Both come.
SELECT dedup_window FROM queen_configure('soon', dedup_window => '10 ms');
SELECT status FROM queen_push('soon', '8', transaction_id => 'w', delay => '60 ms');
SELECT pg_sleep(0.02);
SELECT status FROM queen_push('soon', '9', transaction_id => 'w');
SELECT pg_sleep(0.05);
SELECT array_agg(payload ORDER BY payload) FROM queen_pop('soon', 'all', batch => 10, subscription_mode => 'all', wait => '5 s');

-- A large message is compressed by lz4 where the server has it. Messages that share a segment are
-- stored as they are: the segment fits into a page.
SELECT status FROM queen_push('packed', jsonb_build_array(repeat('a', 20000)), headers => '{"h": 1}');
SELECT count(*) FROM queen_push_batch('packed', array_fill(jsonb_build_array(repeat('a', 2000)), ARRAY[3]));
SELECT n, pg_column_compression(payloads) = CASE WHEN 'lz4' = ANY (enumvals) THEN 'lz4' ELSE 'pglz' END AS is_packed
FROM queen_mq.segment s JOIN queen_mq.queue q ON q.id = s.queue_id AND q.name = 'packed',
     pg_settings
WHERE pg_settings.name = 'default_toast_compression' ORDER BY s.id;
SELECT length(payload ->> 0) FROM queen_pop('packed', batch => 9, subscription_mode => 'all');

-- However an array comes, its elements are the payloads: with other bounds, expanded by PL/pgSQL, of
-- a domain, from a table, packed.
CREATE DOMAIN orders AS jsonb[];
CREATE TEMPORARY TABLE given (a jsonb[], ids text[]);
INSERT INTO given VALUES ('[7:9]={1,2,"[3]"}', '[0:2]={x,NULL,z}');
INSERT INTO given SELECT array_agg(to_jsonb(repeat('b', 9000 + n))), NULL FROM generate_series(1, 9) AS n;
SELECT count(*), count(DISTINCT message_id) FROM given, queen_push_batch('arrays', a, transaction_ids => ids);
SELECT count(*) FROM queen_push_batch('arrays', '{4,5}'::orders);
DO $$
DECLARE
    a jsonb[];
    ids text[] := '{}';
BEGIN
    FOR n IN 6..8 LOOP
        a[n] := to_jsonb(n);
        ids[n] := CASE WHEN n <> 7 THEN 'id-' || n END;
    END LOOP;
    PERFORM queen_push_batch('arrays', a, transaction_ids => ids, headers => a);
END
$$;
SELECT CASE WHEN length(payload::text) > 100 THEN length(payload::text)::text ELSE payload::text END AS payload,
       CASE WHEN transaction_id LIKE 'msg-%' THEN 'derived' ELSE transaction_id END AS transaction_id, headers
FROM queen_pop('arrays', batch => 100, subscription_mode => 'all');
