-- Key/value markers. Expiry is a predicate of every statement; deleting expired rows is
-- housekeeping.

-- Unique and never reused, so a version names one write. CACHE 32 is what a sequence logs ahead
-- anyway; versions are compared for equality only.
CREATE SEQUENCE queen_mq.marker_version AS bigint CACHE 32;

CREATE TABLE queen_mq.marker (
    version    bigint NOT NULL,
    expires_at timestamptz,                 -- NULL: never
    created_at timestamptz NOT NULL,        -- of this life of the key: an expired row's ends with it
    updated_at timestamptz NOT NULL,
    ns         text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    value      jsonb NOT NULL,
    PRIMARY KEY (ns, key)
) WITH (
    -- Counters and locks are rewritten in place: leave room for their next versions on the page.
    fillfactor = 70,
    -- Vacuum by hundreds, not by fifths of a table that may have millions of rows.
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 500,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_analyze_threshold = 500,
    -- Giving pages back takes an ACCESS EXCLUSIVE lock, for a table that grows again at once.
    vacuum_truncate = off,
    toast.vacuum_truncate = off,
    toast.autovacuum_vacuum_scale_factor = 0.01,
    toast.autovacuum_vacuum_threshold = 500
);

-- For the sweep. An incr keeps the expiry, and with it the update stays out of all indexes.
CREATE INDEX marker_expiry ON queen_mq.marker (expires_at) WHERE expires_at IS NOT NULL;

SELECT pg_catalog.pg_extension_config_dump('queen_mq.marker', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.marker_version', '');

-- What the planner should know; pgrx has no word for it.
ALTER FUNCTION @extschema@.queen_kv_get(text, text) ROWS 1;
ALTER FUNCTION @extschema@.queen_kv_get_many(text, text[]) ROWS 10;
ALTER FUNCTION @extschema@.queen_kv_list(text, text, text, integer) ROWS 100;
ALTER FUNCTION @extschema@.queen_kv_put(text, text, jsonb, interval, boolean, bigint, boolean) ROWS 1;
ALTER FUNCTION @extschema@.queen_kv_put_if_absent(text, text, jsonb, interval, boolean, boolean) ROWS 1;
ALTER FUNCTION @extschema@.queen_kv_delete(text, text, bigint, boolean) ROWS 1;
ALTER FUNCTION @extschema@.queen_kv_incr(text, text, numeric, interval, boolean, numeric, numeric, boolean) ROWS 1;
ALTER FUNCTION @extschema@.queen_kv_check(text, text, bigint, boolean) ROWS 1;

COMMENT ON TABLE queen_mq.marker IS
    'Key/value markers. Written by the queen_kv functions and queen_tx_commit alone; read them with queen_kv_get and queen_kv_list.';
COMMENT ON COLUMN queen_mq.marker.version IS
    'Drawn anew by every write, never reused.';
COMMENT ON COLUMN queen_mq.marker.expires_at IS
    'From this moment on the marker does not exist, whether or not the row does. NULL: never.';
COMMENT ON COLUMN queen_mq.marker.created_at IS
    'When the key came to life; a write over an expired row begins anew.';
COMMENT ON SEQUENCE queen_mq.marker_version IS
    'Versions of markers: unique, compared for equality only.';
COMMENT ON INDEX queen_mq.marker_expiry IS
    'Finds expired markers for the sweep.';
COMMENT ON FUNCTION @extschema@.queen_kv_get(text, text) IS
    'Read one marker: one row, found or not.';
COMMENT ON FUNCTION @extschema@.queen_kv_get_many(text, text[]) IS
    'Read several markers of a namespace at one moment: one row per key, in the order given.';
COMMENT ON FUNCTION @extschema@.queen_kv_list(text, text, text, integer) IS
    'Live markers of a namespace in byte order of their keys: literal prefix, exclusive after, at most max_rows (1..1000).';
COMMENT ON FUNCTION @extschema@.queen_kv_put(text, text, jsonb, interval, boolean, bigint, boolean) IS
    'Write a marker. Exactly one of ttl and forever => true. expect: 0, must not exist; a version, must be exactly this one. Not applied: reason exists, absent or version; with required, error QN010.';
COMMENT ON FUNCTION @extschema@.queen_kv_put_if_absent(text, text, jsonb, interval, boolean, boolean) IS
    'Write a marker unless there is one: of concurrent calls one wins, the others wait for its transaction and get reason exists with its value and version. Exactly one of ttl and forever => true.';
COMMENT ON FUNCTION @extschema@.queen_kv_delete(text, text, bigint, boolean) IS
    'Delete a marker and return what it was. expect: 0, must not exist; a version, must be exactly this one. Not applied: reason absent, version or exists; with required, error QN010.';
COMMENT ON FUNCTION @extschema@.queen_kv_incr(text, text, numeric, interval, boolean, numeric, numeric, boolean) IS
    'Add delta to a marker that is a number (absent: zero). Refused, not clipped, outside min..max. Exactly one of ttl and forever => true, which counts on creation only. Not applied: reason limit or type; with required, error QN010.';
COMMENT ON FUNCTION @extschema@.queen_kv_check(text, text, bigint, boolean) IS
    'Assert that a marker has exactly the version expect (0: does not exist), and keep it so until the transaction ends. Not applied: reason exists, absent or version; with required, error QN010.';
