-- The fence: settling with a lost lease raises an error with DETAIL and HINT, which undoes the rest of
-- the transaction.
\set VERBOSITY sqlstate
\pset footer off

CREATE TABLE effects (what text);

-- attempt COMMAND: runs it in a subtransaction, together with an effect and a marker.
CREATE FUNCTION pg_temp.attempt(command text) RETURNS TABLE (code text, says text, has_detail boolean, has_hint boolean)
LANGUAGE plpgsql AS $$
DECLARE detail text; hint text;
BEGIN
  INSERT INTO effects VALUES (command);
  PERFORM queen_kv_put_if_absent('fence', 'marker', '1', ttl => '1 hour', required => true);
  EXECUTE command;
  RETURN QUERY SELECT '00000', 'accepted', false, false;
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
  says := CASE code WHEN 'QN001' THEN 'expired' WHEN 'QN002' THEN 'superseded' WHEN 'QN003' THEN 'unknown'
                    WHEN 'QN004' THEN 'not in lease' WHEN 'QN005' THEN 'already settled' ELSE SQLERRM END;
  has_detail := detail <> '';
  has_hint := hint <> '';
  RETURN NEXT;
END $$;

SELECT count(*) FROM generate_series(1, 3) AS n, queen_push('fence', to_jsonb(n), transaction_id => 't' || n);

-- Expired, although no consumer has popped since.
SELECT lease_id AS first FROM queen_pop('fence', 'g', lease_time => '50 ms', subscription_mode => 'all') \gset
DO $$ BEGIN PERFORM pg_sleep(0.1); END $$;
SELECT * FROM pg_temp.attempt(format('SELECT queen_ack(%L)', :'first'));
SELECT * FROM pg_temp.attempt(format('SELECT queen_ack(%L, transaction_ids => ARRAY[''t1''], status => ''failed'')', :'first'));
SELECT * FROM pg_temp.attempt(format('SELECT queen_extend(%L)', :'first'));
SELECT * FROM pg_temp.attempt(format('SELECT queen_settle(%L, ''[{"transactionId": "t1", "status": "completed"}]'')', :'first'));

-- Superseded: another lease has the messages, or has completed them.
SELECT lease_id AS second FROM queen_pop('fence', 'g') \gset
SELECT * FROM pg_temp.attempt(format('SELECT queen_ack(%L)', :'first'));
SELECT * FROM pg_temp.attempt(format('SELECT queen_extend(%L)', :'first'));
SELECT settled FROM queen_ack(:'second');
SELECT * FROM pg_temp.attempt(format('SELECT queen_ack(%L, transaction_ids => ARRAY[''t1''])', :'first'));

-- An unknown lease.
SELECT * FROM pg_temp.attempt(format('SELECT queen_ack(%L)', gen_random_uuid()));
SELECT * FROM pg_temp.attempt(format('SELECT queen_extend(%L)', gen_random_uuid()));
SELECT * FROM pg_temp.attempt('SELECT queen_ack(NULL)');

-- Not in this lease: another message of the group, and one that the lease has given back.
SELECT DISTINCT lease_id AS third FROM queen_pop('fence', 'g', batch => 2) \gset
SELECT * FROM pg_temp.attempt(format('SELECT queen_ack(%L, transaction_ids => ARRAY[''t1''])', :'third'));
SELECT settled FROM queen_ack(:'third', transaction_ids => ARRAY['t2']);

-- Already settled: completing again is accepted, failing is not.
SELECT settled, already FROM queen_ack(:'third', transaction_ids => ARRAY['t2']);
SELECT * FROM pg_temp.attempt(format('SELECT queen_ack(%L, transaction_ids => ARRAY[''t2''], status => ''failed'')', :'third'));
SELECT * FROM pg_temp.attempt(format('SELECT queen_ack(%L, transaction_ids => ARRAY[''t2''], status => ''retry'')', :'third'));
SELECT * FROM pg_temp.attempt(format('SELECT queen_ack(%L, transaction_ids => ARRAY[''t2''], status => ''dead_letter'')', :'third'));
SELECT settled, lease_released FROM queen_ack(:'third', transaction_ids => ARRAY['t3'], status => 'retry');
SELECT * FROM pg_temp.attempt(format('SELECT queen_ack(%L, transaction_ids => ARRAY[''t3''])', :'third'));

-- A lease of a removed queue is unknown.
SELECT lease_id AS fourth FROM queen_pop('fence', 'g') \gset
SELECT queen_delete_queue('fence');
SELECT * FROM pg_temp.attempt(format('SELECT queen_ack(%L)', :'fourth'));

-- None of these attempts had an effect.
SELECT count(*) FROM effects;
SELECT found FROM queen_kv_get('fence', 'marker');
DROP TABLE effects;
