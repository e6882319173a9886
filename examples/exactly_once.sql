-- Charging orders exactly once, although messages are delivered more than once.
--
--     psql -f examples/exactly_once.sql        in any database that has the extension
--
-- A queue delivers a message again when it cannot know that the work was done: the worker (the program
-- that consumes messages) crashed, or was too slow, or its answer was lost. So the worker leaves a
-- marker, "this order is charged", and looks for the marker first. If the marker were in a second
-- system, it could be missing although the charge was made. Here charge, marker and acknowledgement are
-- rows of one database, written in one transaction. Either all three exist or none does, and a worker
-- that gets the message again finds the marker.
--
--     queue of orders ── group "charger"   charge + marker + ack in one transaction
--                     └─ group "replay"    gets all orders again, charges nothing
--
-- The script prints each fact that it checks, and ends with `PASS: N checks` or with an error. It uses
-- temporary tables and names of its own, and removes what it made, also when it fails. (If it is killed
-- in the middle, it leaves a queue exactly-once-…, and markers that expire within the hour.)

\set QUIET on
\set AUTOCOMMIT on
\set ON_ERROR_ROLLBACK off
\set ON_ERROR_STOP on
\pset pager off
\pset format unaligned
\pset tuples_only on

DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_extension WHERE extname = 'queen_mq') THEN
    RAISE 'this database does not have queen_mq' USING HINT = 'CREATE EXTENSION queen_mq;';
  END IF;
END $$;

-- The extension may live in any schema.
SELECT set_config('search_path', concat_ws(', ', 'pg_temp', extnamespace::regnamespace,
                  nullif(current_setting('search_path'), '')), false) AS path
FROM pg_extension WHERE extname = 'queen_mq' \gset

-- One name of this run, for its queue and for the namespace of its markers.
SELECT format('exactly-once-%s-%s', to_char(clock_timestamp(), 'YYYYMMDDHH24MISSMS'), pg_backend_pid()) AS run \gset
SELECT :'run' || '-receipts' AS receipts \gset

-- charges is the ledger: the charges that the customers would see. The table does not forbid a second
-- charge for an order. Only the marker prevents it.
CREATE TEMPORARY TABLE charges (charge_id text, order_id text, cents integer);
CREATE TEMPORARY TABLE deliveries (consumer_group text, order_id text, attempt integer, outcome text);
CREATE TEMPORARY TABLE checks (fact text, holds boolean);

CREATE FUNCTION pg_temp.ok(holds boolean, fact text) RETURNS text LANGUAGE sql AS $$
  INSERT INTO checks VALUES (fact, coalesce(holds, false));
  SELECT CASE WHEN holds THEN '  ok: ' ELSE '  FAILED: ' END || fact;
$$;

------------------------------------------------------------------------------------- the worker
-- Handles one delivery in four steps. Their order matters.

CREATE PROCEDURE pg_temp.handle_one(run text, worker text, INOUT line text DEFAULT NULL)
LANGUAGE plpgsql AS $$
DECLARE
  message record;
  marker record;
  this_order text;
  this_charge text;
  outcome text;
BEGIN
  SELECT * INTO message
  FROM queen_pop(run, consumer_group => worker, subscription_mode => 'all', wait => '10 s');
  IF NOT FOUND THEN
    line := '  nothing was delivered';
    RETURN;
  END IF;
  this_order := message.payload ->> 'orderId';
  -- From here on this worker holds the message until the lease expires. A crash costs time, nothing else.
  COMMIT;

  -- 1. Is the order charged already? Then only acknowledge the message, for this group.
  SELECT * INTO marker FROM queen_kv_get(run, 'charge:' || this_order);
  IF marker.found THEN
    PERFORM queen_ack(message.lease_id, transaction_ids => ARRAY[message.transaction_id]);
    outcome := 'already charged, skipped';

  -- 2. First do what can fail without an effect. Here the first attempt at ORD-3 fails. After 'failed'
  --    the order is delivered again, and the failure counts against its retry limit.
  ELSIF this_order = 'ORD-3' AND message.delivery_attempt = 1 THEN
    PERFORM queen_ack(message.lease_id, transaction_ids => ARRAY[message.transaction_id],
                      status => 'failed', error => 'card network timed out');
    outcome := 'card network timed out';

  ELSE
    -- 3. The effect. (If it is a call to another system, this database cannot undo it. Then send the
    --    marker's key to the payment provider, as its idempotency key.)
    this_charge := format('ch_%s_%s', this_order, (SELECT count(*) FROM charges));
    INSERT INTO charges VALUES (this_charge, this_order, (message.payload ->> 'cents')::integer);

    -- 4. Marker and acknowledgement, in the transaction of the effect. `required` makes the marker a
    --    gate: if another worker was faster, it raises an error, which rolls back the charge above. So
    --    does the acknowledgement if it comes too late, after the lease has expired.
    PERFORM queen_kv_put_if_absent(run, 'charge:' || this_order,
                                   jsonb_build_object('chargeId', this_charge, 'cents', message.payload -> 'cents'),
                                   ttl => '1 hour', required => true);
    PERFORM queen_ack(message.lease_id, transaction_ids => ARRAY[message.transaction_id]);
    outcome := 'charged';
  END IF;

  INSERT INTO deliveries VALUES (worker, this_order, message.delivery_attempt, outcome);
  COMMIT;
  line := format('  %s: %s', this_order, outcome);
END $$;

-- From here to the clean-up, an error does not end the script. The check after it fails instead.
\set ON_ERROR_STOP off

---------------------------------------------------------------------------------------- queuing
\echo queuing orders
SELECT pg_temp.ok(lease_time = '30 s' AND retry_limit = 5, 'the queue has a lease of 30 seconds and 5 retries')
FROM queen_configure(:'run', lease_time => '30 s', retry_limit => 5);

SELECT pg_temp.ok(count(*) = 5 AND bool_and(pushed.status = 'queued'), 'five orders are queued')
FROM generate_series(1, 5) AS n,
     queen_push(:'run', jsonb_build_object('orderId', 'ORD-' || n, 'cents', 999 + n),
                transaction_id => 'order-ORD-' || n) AS pushed;

SELECT pg_temp.ok(status = 'duplicate', 'an order that is sent twice is queued once')
FROM queen_push(:'run', '{"orderId": "ORD-1", "cents": 1000}', transaction_id => 'order-ORD-1');

--------------------------------------------------------------------------------------- charging
-- Six deliveries for five orders, because ORD-3 comes twice. It keeps its place: ORD-4 waits for it.
\echo
\echo charging
CALL pg_temp.handle_one(:'run', 'charger');
CALL pg_temp.handle_one(:'run', 'charger');
CALL pg_temp.handle_one(:'run', 'charger');
-- If the worker wrote the marker before the work, ORD-3 would now never be charged.
SELECT pg_temp.ok(NOT found, 'ORD-3 failed before it charged, and left no marker')
FROM queen_kv_get(:'run', 'charge:ORD-3');
CALL pg_temp.handle_one(:'run', 'charger');
CALL pg_temp.handle_one(:'run', 'charger');
CALL pg_temp.handle_one(:'run', 'charger');
SELECT pg_temp.ok(count(*) = 5, 'the charger came to a decision on every order')
FROM deliveries WHERE consumer_group = 'charger' AND outcome = 'charged';

-------------------------------------------------------------------------------------- replaying
-- A second group reads the messages again from the beginning, with the procedure of the first.
\echo
\echo replaying
CALL pg_temp.handle_one(:'run', 'replay');
CALL pg_temp.handle_one(:'run', 'replay');
CALL pg_temp.handle_one(:'run', 'replay');
CALL pg_temp.handle_one(:'run', 'replay');
CALL pg_temp.handle_one(:'run', 'replay');

--------------------------------------------------------------------------------------- checking
\echo
\echo checking
SELECT pg_temp.ok(count(*) = 5, 'five orders have led to exactly five charges') FROM charges;
SELECT pg_temp.ok(count(*) = 5 AND bool_and(times = 1), 'each order was charged once, none twice and none not at all')
FROM (SELECT count(*) AS times FROM charges GROUP BY order_id) AS per_order;
SELECT pg_temp.ok(array_agg(attempt ORDER BY attempt) = ARRAY[1, 2], 'ORD-3 was delivered again after it had failed')
FROM deliveries WHERE consumer_group = 'charger' AND order_id = 'ORD-3';
SELECT pg_temp.ok(count(DISTINCT order_id) = 5, 'the replay got all five orders again')
FROM deliveries WHERE consumer_group = 'replay';
SELECT pg_temp.ok(bool_and(outcome = 'already charged, skipped'), 'and skipped every one of them')
FROM deliveries WHERE consumer_group = 'replay';
SELECT pg_temp.ok(count(*) = 5, 'the ledger still has five rows') FROM charges;

-- A marker can be read: it says which charge was made for an order.
CREATE TEMPORARY VIEW markers AS
SELECT key, found, value ->> 'chargeId' AS charge_id, (value ->> 'cents')::integer AS cents
FROM queen_kv_get_many(:'run', (SELECT array_agg('charge:ORD-' || n ORDER BY n) FROM generate_series(1, 5) AS n));
SELECT pg_temp.ok(count(*) FILTER (WHERE found) = 5, 'all five markers exist') FROM markers;
SELECT pg_temp.ok(count(*) FILTER (WHERE NOT found) = 0, 'no order is without its marker') FROM markers;
SELECT pg_temp.ok(count(*) = 5, 'each marker names the charge that was made')
FROM markers JOIN charges USING (charge_id, cents) WHERE key = 'charge:' || order_id;

\echo
SELECT '  ledger: ' || string_agg(order_id || '=' || charge_id, ', ' ORDER BY order_id) FROM charges;

-- What each failure does. Below, a worker's steps are written out, without the procedure. Within the
-- transaction their order does not matter. The step that will be refused comes last.

-------------------------------------------------- the lease expires while the worker is at work
\echo
\echo 'the lease expires while the worker is at work (the ERROR is the fence)'
SELECT status FROM queen_push(:'run', '{"orderId": "ORD-6", "cents": 1005}', transaction_id => 'order-ORD-6') \gset
SELECT lease_id FROM queen_pop(:'run', 'charger', lease_time => '200 ms') \gset
DO $$ BEGIN PERFORM pg_sleep(0.3); END $$;

BEGIN;
INSERT INTO charges VALUES ('ch_too_late', 'ORD-6', 1005);
SELECT applied FROM queen_kv_put_if_absent(:'run', 'charge:ORD-6', '{"chargeId": "ch_too_late"}',
                                           ttl => '1 hour', required => true) \gset
SELECT settled FROM queen_ack(:'lease_id', transaction_ids => ARRAY['order-ORD-6']) \gset
COMMIT;

SELECT pg_temp.ok(:'LAST_ERROR_SQLSTATE' = 'QN001', 'an acknowledgement after the lease is refused');
SELECT pg_temp.ok(NOT found, 'and no marker remains') FROM queen_kv_get(:'run', 'charge:ORD-6');
SELECT pg_temp.ok(count(*) = 0, 'and no charge remains') FROM charges WHERE order_id = 'ORD-6';
CALL pg_temp.handle_one(:'run', 'charger');
SELECT pg_temp.ok(count(*) = 1 AND bool_and(attempt = 2 AND outcome = 'charged'),
                  'the next worker gets the order, and charges it')
FROM deliveries WHERE order_id = 'ORD-6';

--------------------------------------------------------------------- the reply to a commit is lost
\echo
\echo 'the reply to a commit is lost (the ERROR is the gate)'
SELECT status FROM queen_push(:'run', '{"orderId": "ORD-7", "cents": 1006}', transaction_id => 'order-ORD-7') \gset
SELECT lease_id FROM queen_pop(:'run', 'charger') \gset

BEGIN;
INSERT INTO charges VALUES ('ch_ORD-7', 'ORD-7', 1006);
SELECT applied FROM queen_kv_put_if_absent(:'run', 'charge:ORD-7', '{"chargeId": "ch_ORD-7"}',
                                           ttl => '1 hour', required => true) \gset
SELECT settled FROM queen_ack(:'lease_id', transaction_ids => ARRAY['order-ORD-7']) \gset
COMMIT;

-- The worker cannot know that this was committed. It may repeat the acknowledgement, or it may repeat
-- the whole transaction.
SELECT pg_temp.ok(settled = 0 AND already = 1, 'the same acknowledgement again does no harm')
FROM queen_ack(:'lease_id', transaction_ids => ARRAY['order-ORD-7']);

BEGIN;
INSERT INTO charges VALUES ('ch_ORD-7_again', 'ORD-7', 1006);
SELECT settled FROM queen_ack(:'lease_id', transaction_ids => ARRAY['order-ORD-7']) \gset
SELECT applied FROM queen_kv_put_if_absent(:'run', 'charge:ORD-7', '{"chargeId": "ch_ORD-7_again"}',
                                           ttl => '1 hour', required => true) \gset
COMMIT;

SELECT pg_temp.ok(:'LAST_ERROR_SQLSTATE' = 'QN010', 'the same transaction again is refused');
SELECT pg_temp.ok(array_agg(charge_id) = ARRAY['ch_ORD-7'], 'and the order is charged once')
FROM charges WHERE order_id = 'ORD-7';

------------------------------------------------------------------ two workers race for one order
-- With a second group, two workers hold one order at the same time.
\echo
\echo 'two workers race for one order (the ERROR is the loser)'
SELECT pg_temp.ok(queen_subscribe(:'run', 'rival'), 'a rival joins, for new orders only');
SELECT status FROM queen_push(:'run', '{"orderId": "ORD-8", "cents": 1007}', transaction_id => 'order-ORD-8') \gset
SELECT lease_id FROM queen_pop(:'run', 'charger') \gset
SELECT lease_id AS rival_lease_id FROM queen_pop(:'run', 'rival') \gset
SELECT pg_temp.ok(NOT found, 'both look for the marker, and neither finds it')
FROM queen_kv_get(:'run', 'charge:ORD-8');

BEGIN;
INSERT INTO charges VALUES ('ch_winner', 'ORD-8', 1007);
SELECT applied FROM queen_kv_put_if_absent(:'run', 'charge:ORD-8', '{"chargeId": "ch_winner"}',
                                           ttl => '1 hour', required => true) \gset
SELECT settled FROM queen_ack(:'lease_id', transaction_ids => ARRAY['order-ORD-8']) \gset
COMMIT;

\set LAST_ERROR_SQLSTATE none
BEGIN;
INSERT INTO charges VALUES ('ch_loser', 'ORD-8', 1007);
SELECT settled FROM queen_ack(:'rival_lease_id', transaction_ids => ARRAY['order-ORD-8']) \gset
SELECT applied FROM queen_kv_put_if_absent(:'run', 'charge:ORD-8', '{"chargeId": "ch_loser"}',
                                           ttl => '1 hour', required => true) \gset
COMMIT;

SELECT pg_temp.ok(:'LAST_ERROR_SQLSTATE' = 'QN010', 'the marker of the winner stops the loser');
SELECT pg_temp.ok(array_agg(charge_id) = ARRAY['ch_winner'], 'only the winner has charged')
FROM charges WHERE order_id = 'ORD-8';
SELECT pg_temp.ok(settled = 1 AND already = 0, 'the loser still holds its message, and now acknowledges it')
FROM queen_ack(:'rival_lease_id', transaction_ids => ARRAY['order-ORD-8']);

---------------------------------------------------------- the marker expires before a redelivery
\echo
\echo 'a marker expires'
SELECT pg_temp.ok(applied, 'a marker that lives for 200 ms')
FROM queen_kv_put_if_absent(:'run', 'charge:ORD-9', '{"chargeId": "ch_ORD-9"}', ttl => '200 ms');
DO $$ BEGIN PERFORM pg_sleep(0.3); END $$;
SELECT pg_temp.ok(NOT found, 'is gone when its time is over, whether or not anything swept')
FROM queen_kv_get(:'run', 'charge:ORD-9');
SELECT pg_temp.ok(applied, 'a late redelivery would charge again: choose a ttl beyond lease time and retries')
FROM queen_kv_put_if_absent(:'run', 'charge:ORD-9', '{"chargeId": "ch_ORD-9_again"}', ttl => '1 hour');

------------------------------------------------------------------------------- the bundle form
-- One call instead of several statements, and an answer instead of an error when a worker loses the
-- race. The effect here is a message to another queue.
\echo
\echo 'the same in one call: queen_tx_commit'
SELECT status FROM queen_push(:'run', '{"orderId": "ORD-10", "cents": 1009}', transaction_id => 'order-ORD-10') \gset
SELECT lease_id FROM queen_pop(:'run', 'charger') \gset
SELECT lease_id AS rival_lease_id FROM queen_pop(:'run', 'rival') \gset

PREPARE charge_order_10 (uuid, text) AS
SELECT queen_tx_commit(
  operations => jsonb_build_array(
    jsonb_build_object('type', 'ack', 'leaseId', $1, 'transactionId', 'order-ORD-10'),
    jsonb_build_object('type', 'push', 'queue', :'receipts', 'payload', jsonb_build_object('chargeId', $2))),
  kv => jsonb_build_array(
    jsonb_build_object('op', 'putIfAbsent', 'ns', :'run', 'key', 'charge:ORD-10',
                       'value', jsonb_build_object('chargeId', $2), 'ttlSeconds', 3600, 'required', true))) AS reply;

EXECUTE charge_order_10 (:'lease_id', 'ch_winner') \gset
SELECT pg_temp.ok(reply @> '{"success": true}' AND jsonb_array_length(reply -> 'results') = 3,
                  'the winner is told: acknowledged, receipt pushed, marker written')
FROM jsonb(:'reply') AS reply;

EXECUTE charge_order_10 (:'rival_lease_id', 'ch_loser') \gset
SELECT pg_temp.ok(reply @> '{"success": false, "reason": "kv_precondition", "results": []}',
                  'the loser is told: kv_precondition')
FROM jsonb(:'reply') AS reply;
SELECT pg_temp.ok(reply @> '{"value": {"chargeId": "ch_winner"}}', 'and which charge was made instead')
FROM jsonb(:'reply') AS reply;
SELECT pg_temp.ok(array_agg(payload ->> 'chargeId') = ARRAY['ch_winner'], 'there is one receipt, the winner''s')
FROM queen_messages WHERE queue = :'receipts';
SELECT pg_temp.ok(settled = 1 AND already = 0, 'the loser''s acknowledgement was not applied: it still can')
FROM queen_ack(:'rival_lease_id', transaction_ids => ARRAY['order-ORD-10']);

------------------------------------------------------------------------------------ cleaning up
-- Markers belong to no queue, and stay when the queue is deleted. They would expire by themselves; the
-- script does not wait for that.
\echo
\echo cleaning up
SELECT array_agg('charge:ORD-' || n) AS keys FROM generate_series(1, 10) AS n \gset
SELECT count(*) FILTER (WHERE applied) AS markers FROM unnest(:'keys'::text[]) AS k, queen_kv_delete(:'run', k) \gset
SELECT queen_delete_queue(:'run') AS messages \gset
SELECT queen_delete_queue(:'receipts') AS messages \gset

SELECT pg_temp.ok(NOT EXISTS (SELECT FROM queen_messages WHERE queue IN (:'run', :'receipts')), 'no message is left');
SELECT pg_temp.ok(bool_and(NOT found), 'no marker is left') FROM queen_kv_get_many(:'run', :'keys');

---------------------------------------------------------------------------------------- verdict
-- The verdict compares the number of checks: a check that was never reached must not count as passed.
\set expected 36
\set held 0
SELECT count(*) FILTER (WHERE holds) AS held FROM checks \gset
DEALLOCATE charge_order_10;
DROP VIEW markers;
DROP TABLE charges, deliveries, checks;
DROP FUNCTION pg_temp.ok;
DROP PROCEDURE pg_temp.handle_one;

\set ON_ERROR_STOP on
SELECT :held = :expected AS pass \gset
\echo
\if :pass
  \echo PASS: :held checks
\else
  \echo FAIL: :held of :expected checks hold
  DO $$ BEGIN RAISE 'the example has failed'; END $$;
\endif
