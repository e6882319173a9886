-- Key/value markers. Versions are only compared, and times are not shown.
\pset null (null)
\pset footer off

-- The error that a command raises.
CREATE FUNCTION pg_temp.refused(command text) RETURNS TABLE (code text, message text, detail text)
LANGUAGE plpgsql AS $$
DECLARE hint text;
BEGIN
    EXECUTE command;
    RETURN QUERY SELECT 'accepted', command, NULL::text;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
        detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
    IF coalesce(detail, '') = '' OR coalesce(hint, '') = '' THEN
        message := message || ' (NO DETAIL OR HINT)';
    END IF;
    RETURN NEXT;
END $$;

-- The version of a marker, as a plain number.
CREATE FUNCTION pg_temp.version(ns text, key text) RETURNS bigint
LANGUAGE sql AS 'SELECT version FROM queen_kv_get(ns, key)';

-- The arguments and results of the functions.
SELECT p.proname, pg_get_function_arguments(p.oid) AS arguments, pg_get_function_result(p.oid) AS result
  FROM pg_proc p WHERE p.proname LIKE 'queen\_kv\_%' ORDER BY p.proname COLLATE "C" \gx
SELECT p.proname, p.prosecdef, p.provolatile, p.proconfig FROM pg_proc p
 WHERE p.proname LIKE 'queen\_kv\_%' AND obj_description(p.oid, 'pg_proc') IS NOT NULL
 ORDER BY p.proname COLLATE "C";

-- Put, get, delete. A second delete reports absent. JSON null is a value.
SELECT * FROM queen_kv_get('t', 'k');
SELECT applied, value, version > 0 AS has_version, reason FROM queen_kv_put('t', 'k', '{"a": 1}', forever => true);
SELECT found, key, value, version > 0 AS has_version, expires_at, updated_at IS NOT NULL AS updated
  FROM queen_kv_get('t', 'k');
SELECT pg_temp.version('t', 'k') AS v \gset
SELECT applied, value, version = :v AS deleted_version, reason FROM queen_kv_delete('t', 'k');
SELECT * FROM queen_kv_delete('t', 'k');
SELECT applied, value, reason FROM queen_kv_put('t', 'null', 'null', forever => true);
SELECT found, value, value IS NULL AS sql_null FROM queen_kv_get('t', 'null');

-- Every write needs exactly one of ttl and forever.
SELECT r.* FROM unnest(ARRAY[
    $$SELECT queen_kv_put('t', 'k', '1')$$,
    $$SELECT queen_kv_put('t', 'k', '1', forever => false)$$,
    $$SELECT queen_kv_put('t', 'k', '1', ttl => '1 h', forever => true)$$,
    $$SELECT queen_kv_put_if_absent('t', 'k', '1')$$,
    $$SELECT queen_kv_put_if_absent('t', 'k', '1', ttl => '1 h', forever => true)$$,
    $$SELECT queen_kv_incr('t', 'k')$$,
    $$SELECT queen_kv_incr('t', 'k', ttl => '1 h', forever => true)$$
]) AS c, pg_temp.refused(c) AS r;

-- A ttl is greater than zero, and its end is in the range of timestamptz.
SELECT t AS ttl, r.* FROM unnest(ARRAY['0', '-1 s', '1 month -30 days', '-1 month 1 hour', '293000 years',
    '178000000 years', '2147483647 days', '2562047788 hours', '-178000000 years 2147483647 days'])
  AS t, pg_temp.refused(format($$SELECT queen_kv_put('t', 'k', '1', ttl => %L)$$, t)) AS r;
SELECT t AS ttl, p.applied
  FROM unnest(ARRAY['1 microsecond', '1 h', '1 day', '1 month', '1 year', '1 day -1 hour', '290000 years']) AS t,
       queen_kv_put('ttl', t, '1', ttl => t::interval) AS p;
SELECT bool_and(expires_at = updated_at + key::interval) AS expire_then FROM queen_mq.marker WHERE ns = 'ttl';

-- An expired marker does not exist, for any function.
SELECT applied FROM queen_kv_put('t', 'gone', '"old"', ttl => '1 microsecond');
SELECT pg_temp.version('t', 'gone') IS NULL AS gone, pg_sleep(0.002) IS NOT NULL AS slept;
SELECT * FROM queen_kv_get('t', 'gone');
SELECT * FROM queen_kv_get_many('t', ARRAY['gone']);
SELECT key FROM queen_kv_list('t', 'gone');
SELECT * FROM queen_kv_check('t', 'gone', 0);
SELECT * FROM queen_kv_check('t', 'gone', 1);
SELECT * FROM queen_kv_delete('t', 'gone');
SELECT * FROM queen_kv_delete('t', 'gone', expect => 0);
SELECT * FROM queen_kv_put('t', 'gone', '1', forever => true, expect => 1);
SELECT applied, value, reason FROM queen_kv_incr('t', 'gone', 7, forever => true);

-- put_if_absent applies once; the second call gets the value and version of the first.
SELECT applied, value, reason FROM queen_kv_put_if_absent('t', 'once', '"first"', ttl => '1 h');
SELECT pg_temp.version('t', 'once') AS v \gset
SELECT applied, value, version = :v AS winners_version, reason
  FROM queen_kv_put_if_absent('t', 'once', '"second"', ttl => '1 h');

-- put_if_absent replaces an expired marker, with a new version and a new creation time.
SELECT version AS v FROM queen_kv_put('t', 'again', '"old"', ttl => '1 ms') \gset
SELECT pg_sleep(0.003);
SELECT applied, value, version <> :v AS new_version
  FROM queen_kv_put_if_absent('t', 'again', '"new"', forever => true);
SELECT created_at = updated_at AS born_anew FROM queen_mq.marker WHERE ns = 't' AND key = 'again';
SELECT applied FROM queen_kv_put('t', 'again', '"newer"', forever => true);
SELECT created_at < updated_at AS keeps_its_creation_time FROM queen_mq.marker WHERE ns = 't' AND key = 'again';

-- expect => 0: the marker must not exist. expect => N: it must have this version; none is created.
SELECT applied, value, reason FROM queen_kv_put('t', 'cas', '1', forever => true, expect => 5);
SELECT found FROM queen_kv_get('t', 'cas');
SELECT applied, value, reason FROM queen_kv_put('t', 'cas', '1', forever => true, expect => 0);
SELECT pg_temp.version('t', 'cas') AS v \gset
SELECT applied, value, version = :v AS current, reason FROM queen_kv_put('t', 'cas', '2', forever => true, expect => 0);
SELECT applied, value, version <> :v AS new_version, reason FROM queen_kv_put('t', 'cas', '2', forever => true, expect => :v);
SELECT applied, value, version <> :v AS current, reason FROM queen_kv_put('t', 'cas', '3', forever => true, expect => :v);
SELECT applied, value, version <> :v AS current, reason FROM queen_kv_delete('t', 'cas', expect => :v);
SELECT applied, value, reason FROM queen_kv_delete('t', 'cas', expect => 0);
SELECT applied, value, reason FROM queen_kv_delete('t', 'cas', expect => pg_temp.version('t', 'cas'));
SELECT * FROM queen_kv_delete('t', 'cas', expect => 0);
SELECT * FROM queen_kv_delete('t', 'cas', expect => :v);

-- check compares and writes nothing.
SELECT applied, value, version = pg_temp.version('t', 'once') AS same, reason
  FROM queen_kv_check('t', 'once', pg_temp.version('t', 'once'));
SELECT applied, value, version = pg_temp.version('t', 'once') AS same, reason FROM queen_kv_check('t', 'once', 1);
SELECT applied, value, reason FROM queen_kv_check('t', 'once', 0);
SELECT * FROM queen_kv_check('t', 'nothing', 1);
SELECT * FROM queen_kv_check('t', 'nothing', 0);

-- incr counts from zero. With max => 3, three calls apply, and the fourth is refused with the value 3.
SELECT applied, value, reason FROM generate_series(1, 4) AS i, queen_kv_incr('t', 'gate', sign(i::numeric), max => 3, ttl => '1 h');
SELECT applied, value, reason FROM queen_kv_incr('t', 'gate', -10, min => 0, forever => true);
SELECT applied, value, reason FROM queen_kv_incr('t', 'gate', -3, min => 0, max => 0, forever => true);
SELECT * FROM queen_kv_incr('t', 'first', 5, max => 4, forever => true);
SELECT * FROM queen_kv_incr('t', 'first', -1, min => 0, forever => true);
SELECT found FROM queen_kv_get('t', 'first');

-- incr of a value that is not a number is refused, unless the marker has expired.
SELECT applied, value, reason FROM queen_kv_incr('t', 'once', forever => true);
SELECT applied, value, reason FROM queen_kv_incr('t', 'null', forever => true);
SELECT applied FROM queen_kv_put('t', 'text', '"12"', ttl => '1 ms');
SELECT pg_sleep(0.003);
SELECT applied, value, reason FROM queen_kv_incr('t', 'text', 12, forever => true);

-- incr is exact.
SELECT value FROM queen_kv_incr('t', 'exact', 0.10, forever => true);
SELECT value FROM queen_kv_incr('t', 'exact', 9007199254740993.05, forever => true);
SELECT value FROM queen_kv_incr('t', 'exact', 12345678901234567890123456789012345678901234567890, forever => true);
SELECT applied, value, reason FROM queen_kv_put('t', 'exact', '1e20', forever => true);
SELECT value FROM queen_kv_incr('t', 'exact', -0.5, forever => true);

-- incr does not extend a marker: its ttl is used only for a new one.
SELECT applied FROM queen_kv_incr('t', 'window', ttl => '1 h');
SELECT expires_at AS e FROM queen_kv_get('t', 'window') \gset
SELECT value FROM queen_kv_incr('t', 'window', ttl => '2 h');
SELECT value FROM queen_kv_incr('t', 'window', forever => true);
SELECT value, expires_at = :'e' AS same_expiry FROM queen_kv_get('t', 'window');

-- put replaces the expiry.
SELECT applied FROM queen_kv_put('t', 'window', '1', ttl => '2 h');
SELECT expires_at > :'e' AS later FROM queen_kv_get('t', 'window');
SELECT applied FROM queen_kv_put('t', 'window', '1', forever => true);
SELECT expires_at FROM queen_kv_get('t', 'window');

-- NaN, infinities and numbers that are too large are refused.
SELECT a AS arguments, r.* FROM unnest(ARRAY[$$'NaN'$$, $$'Infinity'$$, $$'-Infinity'$$, $$1, min => 'NaN'$$,
    $$1, max => 'Infinity'$$, $$1, min => 2, max => 1$$, $$1e131071$$, $$-1e131071$$]) AS a,
  pg_temp.refused(format($$SELECT queen_kv_incr('t', 'n', %s, forever => true)$$, a)) AS r;
SELECT applied FROM queen_kv_put('t', 'huge', '9e131071', forever => true);
SELECT * FROM pg_temp.refused($$SELECT queen_kv_incr('t', 'huge', 9e131070, forever => true)$$);
SELECT applied FROM queen_kv_put('t', 'long', '1e-16000', forever => true);
SELECT * FROM pg_temp.refused($$SELECT queen_kv_incr('t', 'long', 1e131070, forever => true)$$);

-- get_many: one row for each key, in the order of the keys.
SELECT found, key, value FROM queen_kv_get_many('t', ARRAY['once', 'nothing', 'null', 'once', 'gate']);
SELECT * FROM queen_kv_get_many('t', '{}');
SELECT bool_and(m.found) AS all_found, count(*) FROM queen_kv_get_many('t', array_fill('once'::text, ARRAY[5000])) AS m;

-- list: in byte order, with a literal prefix, after `after`, without keys that are only similar.
SELECT count(*) FROM unnest(ARRAY['a', 'a%', 'a%b', 'a_', 'a_b', 'ab', 'aB', 'A', 'b', 'é', 'éa', 'z', E'a\x01', E'a\n',
    'a' || chr(1114111), 'a' || chr(1114111) || 'x']) AS k, queen_kv_put('list', k, '1', forever => true);
SELECT p.applied FROM unnest(ARRAY['lisa', 'list2', 'lis']) AS ns, queen_kv_put(ns, 'a', '1', forever => true) AS p;
SELECT encode(convert_to(key, 'UTF8'), 'escape') AS key FROM queen_kv_list('list');
SELECT key FROM queen_kv_list('list', 'a%');
SELECT key FROM queen_kv_list('list', 'a_');
SELECT key FROM queen_kv_list('list', 'é');
SELECT count(*) FROM queen_kv_list('list', 'a' || chr(1114111));
SELECT key FROM queen_kv_list('list', after => 'a%b', max_rows => 3);
SELECT key FROM queen_kv_list('list', 'a_', after => 'a_');
SELECT key FROM queen_kv_list('list', 'a_', after => 'Z');
SELECT key FROM queen_kv_list('list', 'a_', after => 'b');
SELECT key FROM queen_kv_list('list', 'nothing');
SELECT key FROM queen_kv_list('list', repeat('x', 600));

-- list by pages returns each marker once, without the expired ones.
SELECT count(*) FROM generate_series(1, 250) AS i,
    queen_kv_put('pages', lpad(i::text, 4, '0'), to_jsonb(i), ttl => CASE WHEN i % 2 = 0 THEN interval '1 h' ELSE '1 ms' END);
SELECT pg_sleep(0.003);
WITH RECURSIVE page (number, keys) AS (
    SELECT 1, (SELECT array_agg(key) FROM queen_kv_list('pages', max_rows => 40))
    UNION ALL
    SELECT number + 1, (SELECT array_agg(key) FROM queen_kv_list('pages', after => keys[cardinality(keys)], max_rows => 40))
      FROM page WHERE keys IS NOT NULL
)
SELECT number, cardinality(keys) AS rows, keys[1] AS first, keys[cardinality(keys)] AS last FROM page;
SELECT count(*) FROM queen_kv_list('pages');

-- required: a write that is not applied raises QN010, and its DETAIL is JSON with the winner.
SELECT pg_temp.version('t', 'once') AS v \gset
SELECT r.code, r.message, r.detail::jsonb - 'version' AS detail, r.detail::jsonb -> 'version' = to_jsonb(:v) AS winners_version
  FROM pg_temp.refused($$SELECT queen_kv_put_if_absent('t', 'once', '2', forever => true, required => true)$$) AS r;
SELECT r.code, r.message, r.detail FROM unnest(ARRAY[
    $$SELECT queen_kv_put('t', 'nothing', '2', forever => true, expect => 1, required => true)$$,
    $$SELECT queen_kv_delete('t', 'nothing', required => true)$$,
    $$SELECT queen_kv_incr('t', 'nothing', 2, max => 1, forever => true, required => true)$$,
    $$SELECT queen_kv_check('t', 'nothing', 7, required => true)$$
]) AS c, pg_temp.refused(c) AS r;
SELECT r.code, r.detail::jsonb - 'version' AS detail FROM unnest(ARRAY[
    $$SELECT queen_kv_put('t', 'once', '2', forever => true, expect => 1, required => true)$$,
    $$SELECT queen_kv_delete('t', 'once', expect => 0, required => true)$$,
    $$SELECT queen_kv_incr('t', 'once', forever => true, required => true)$$,
    $$SELECT queen_kv_check('t', 'once', 0, required => true)$$
]) AS c, pg_temp.refused(c) AS r;
SELECT applied, reason FROM queen_kv_put_if_absent('t', 'required', '1', forever => true, required => true);
SELECT applied, reason FROM queen_kv_check('t', 'required', pg_temp.version('t', 'required'), required => true);
SELECT applied FROM queen_kv_put('t', E'quo"te\\\n', '{"q": "\"\\"}', forever => true);
SELECT r.detail::jsonb - 'version' AS detail
  FROM pg_temp.refused($$SELECT queen_kv_check('t', E'quo"te\\\n', 0, required => true)$$) AS r;

-- Calls that are refused with 22023.
SELECT r.* FROM unnest(ARRAY[
    $$SELECT queen_kv_get(NULL, 'k')$$,
    $$SELECT queen_kv_get('t', NULL)$$,
    $$SELECT queen_kv_get('', 'k')$$,
    $$SELECT queen_kv_get('T', 'k')$$,
    $$SELECT queen_kv_get('-t', 'k')$$,
    $$SELECT queen_kv_get('a/b', 'k')$$,
    $$SELECT queen_kv_get(E't\n', 'k')$$,
    $$SELECT queen_kv_get(repeat('n', 65), 'k')$$,
    $$SELECT queen_kv_get('t', '')$$,
    $$SELECT queen_kv_get('t', repeat('k', 513))$$,
    $$SELECT queen_kv_get('t', repeat('é', 257))$$,
    $$SELECT queen_kv_get_many(NULL, ARRAY['k'])$$,
    $$SELECT queen_kv_get_many('t', NULL)$$,
    $$SELECT queen_kv_get_many('t', ARRAY['k', NULL])$$,
    $$SELECT queen_kv_get_many('t', ARRAY['k', ''])$$,
    $$SELECT queen_kv_get_many('t', ARRAY[['a', 'b'], ['c', 'd']])$$,
    $$SELECT queen_kv_list(NULL)$$,
    $$SELECT queen_kv_list('t', max_rows => 0)$$,
    $$SELECT queen_kv_list('t', max_rows => 1001)$$,
    $$SELECT queen_kv_list('t', max_rows => -1)$$,
    $$SELECT queen_kv_put('t', 'k', NULL, forever => true)$$,
    $$SELECT queen_kv_put('t', 'k', '1', forever => true, expect => -1)$$,
    $$SELECT queen_kv_put_if_absent('t', 'k', NULL, forever => true)$$,
    $$SELECT queen_kv_delete('t', 'k', expect => -9223372036854775808)$$,
    $$SELECT queen_kv_delete(NULL, NULL)$$,
    $$SELECT queen_kv_check('t', 'k', NULL)$$,
    $$SELECT queen_kv_check('t', 'k', -7)$$,
    $$SELECT queen_kv_incr('t', NULL, forever => true)$$
]) AS c, pg_temp.refused(c) AS r;

-- NULL for an argument with a default means the default.
SELECT applied, value FROM queen_kv_put('t', 'defaults', '1', ttl => '1 h', forever => NULL, expect => NULL, required => NULL);
SELECT applied, value FROM queen_kv_incr('t', 'defaults', NULL, NULL, true, NULL, NULL, NULL);
SELECT applied, reason FROM queen_kv_put_if_absent('t', 'defaults', '1', NULL, true, NULL);
SELECT key, value FROM queen_kv_list('t', NULL, NULL, NULL) WHERE key = 'defaults';
SELECT applied, value FROM queen_kv_delete('t', 'defaults', NULL, NULL);

-- Names and values at their limits come back unchanged.
SELECT p.applied, g.found, g.key = k AS same FROM unnest(ARRAY[repeat('k', 512), repeat('é', 256), ' ', E'\x01\x7f\n\t',
    $$'; DROP TABLE queen_mq.marker; --$$, '%_\', 'queen_mq.marker', '🦀']) AS k,
    queen_kv_put(repeat('n', 64), k, to_jsonb(k), forever => true) AS p,
    LATERAL queen_kv_get(repeat('n', 64), CASE WHEN p.applied THEN k END) AS g;
-- 65536 bytes of jsonb: the header, the array entry, and that many characters.
SELECT p.applied, g.value = p.value AS same, pg_column_size(p.value) AS bytes
  FROM to_jsonb(repeat('v', 65536 - 12)) AS v, queen_kv_put('t', 'big', v, forever => true) AS p,
       LATERAL queen_kv_get('t', CASE WHEN p.applied THEN 'big' END) AS g;
SELECT * FROM pg_temp.refused($$SELECT queen_kv_put('t', 'big', to_jsonb(repeat('v', 65536 - 11)), forever => true)$$);
SELECT * FROM pg_temp.refused($$SELECT queen_kv_put_if_absent('t', 'bigger', to_jsonb(repeat('v', 70000)), forever => true)$$);

-- Large values that are stored out of line come back whole from every function.
CREATE TEMP TABLE kept AS SELECT g.* FROM queen_kv_get('t', 'big') AS g;
CREATE TEMP TABLE random_text AS
    SELECT string_agg(md5(i::text), '') AS text FROM generate_series(1, 2000) AS i;
SELECT count(*) FROM random_text, generate_series(1, 50) AS i,
    queen_kv_put('toast', 'k' || i, to_jsonb(text || i), forever => true);
CREATE TEMP TABLE listed AS SELECT l.key, l.value FROM queen_kv_list('toast') AS l;
CREATE TEMP TABLE many AS
    SELECT m.key, m.value FROM queen_kv_get_many('toast', ARRAY(SELECT 'k' || i FROM generate_series(1, 50) AS i)) AS m;
CREATE TEMP TABLE refused AS
    SELECT p.value FROM queen_kv_put_if_absent('toast', 'k1', '1', forever => true) AS p;
CREATE TEMP TABLE deleted AS
    SELECT 'k' || i AS key, d.value FROM generate_series(1, 50) AS i, queen_kv_delete('toast', 'k' || i) AS d;
VACUUM queen_mq.marker;
SELECT (SELECT count(*) FROM listed AS k WHERE k.value = to_jsonb(text || substr(k.key, 2))) AS listed,
       (SELECT count(*) FROM many AS k WHERE k.value = to_jsonb(text || substr(k.key, 2))) AS many,
       (SELECT count(*) FROM refused AS k WHERE k.value = to_jsonb(text || '1')) AS refused,
       (SELECT count(*) FROM deleted AS k WHERE k.value = to_jsonb(text || substr(k.key, 2))) AS deleted,
       (SELECT count(*) FROM kept AS k WHERE k.value = to_jsonb(repeat('v', 65536 - 12))) AS kept
  FROM random_text;

-- Reads, refused writes and deletes of absent markers use no transaction id.
BEGIN;
SELECT found FROM queen_kv_get('t', 'once');
SELECT count(*) FROM queen_kv_get_many('t', ARRAY['once', 'nothing']);
SELECT count(*) > 0 AS listed FROM queen_kv_list('t');
SELECT reason FROM queen_kv_put_if_absent('t', 'once', '2', ttl => '1 h');
SELECT reason FROM queen_kv_put('t', 'once', '2', ttl => '1 h', expect => 1);
SELECT reason FROM queen_kv_incr('t', 'once', forever => true);
SELECT reason FROM queen_kv_delete('t', 'nothing');
SELECT reason FROM queen_kv_check('t', 'nothing', 1);
SELECT pg_current_xact_id_if_assigned() AS xid;
COMMIT;

-- A read-only transaction can read and check, and gets an error when it writes.
BEGIN READ ONLY;
SELECT found FROM queen_kv_get('t', 'once');
SELECT applied FROM queen_kv_check('t', 'once', pg_temp.version('t', 'once'));
SELECT queen_kv_put('t', 'once', '1', forever => true);
ROLLBACK;

-- In one transaction later statements see earlier writes, a savepoint undoes them, and versions are never reused.
BEGIN;
SELECT version AS v1 FROM queen_kv_put('t', 'tx', '1', forever => true) \gset
SAVEPOINT s;
SELECT version AS v2 FROM queen_kv_put('t', 'tx', '2', forever => true, expect => :v1) \gset
SELECT applied, value FROM queen_kv_delete('t', 'tx', expect => :v2);
SELECT applied, value FROM queen_kv_put_if_absent('t', 'tx', '3', forever => true);
ROLLBACK TO SAVEPOINT s;
SELECT value, version = :v1 AS first_version FROM queen_kv_get('t', 'tx');
SELECT version <> ALL (ARRAY[:v1, :v2]) AS fresh FROM queen_kv_put('t', 'tx', '4', forever => true);
COMMIT;
SELECT value FROM queen_kv_get('t', 'tx');
SELECT applied, value, reason FROM unnest(ARRAY[1, 2, 3]) AS i, queen_kv_put_if_absent('t', 'one statement', to_jsonb(i), forever => true);
DO $$ BEGIN PERFORM queen_kv_incr('t', 'do', forever => true); PERFORM queen_kv_incr('t', 'do', forever => true); END $$;
SELECT value FROM queen_kv_get('t', 'do');

-- Also in REPEATABLE READ, without other sessions.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT applied, value FROM queen_kv_put_if_absent('t', 'rr', '1', ttl => '1 h');
SELECT applied, value, reason FROM queen_kv_put_if_absent('t', 'rr', '2', ttl => '1 h');
SELECT applied, value FROM queen_kv_incr('t', 'rr', ttl => '1 h');
SELECT applied, value FROM queen_kv_put('t', 'rr', '5', ttl => '1 h', expect => pg_temp.version('t', 'rr'));
SELECT applied, value FROM queen_kv_check('t', 'rr', pg_temp.version('t', 'rr'));
SELECT applied, value FROM queen_kv_delete('t', 'rr');
SELECT applied, reason FROM queen_kv_delete('t', 'rr');
SELECT applied FROM queen_kv_check('t', 'rr', 0);
SELECT applied, value FROM queen_kv_put('t', 'rr', '6', ttl => '1 h', expect => 0);
COMMIT;
SELECT value FROM queen_kv_get('t', 'rr');

-- Markers are part of a dump.
SELECT c.relname FROM pg_extension AS e, unnest(e.extconfig) AS t JOIN pg_class AS c ON c.oid = t
 WHERE e.extname = 'queen_mq' AND c.relname LIKE 'marker%' ORDER BY 1;
