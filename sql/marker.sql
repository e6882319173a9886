-- Key/value markers. Every statement compares expires_at with the clock, so it finds no expired
-- marker. The sweep deletes the expired rows later.

-- Versions of markers. A version is never used again, so it names one write. Versions are compared
-- for equality only, so sessions may draw them out of order: CACHE 32. A sequence logs 32 numbers
-- ahead in any case.
CREATE SEQUENCE queen_mq.marker_version AS bigint CACHE 32;

CREATE TABLE queen_mq.marker (
    version    bigint NOT NULL,
    expires_at timestamptz,                 -- NULL: never
    created_at timestamptz NOT NULL,        -- of this marker; a write over an expired row makes a new one
    updated_at timestamptz NOT NULL,
    ns         text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    value      jsonb NOT NULL,
    PRIMARY KEY (ns, key)
) WITH (
    -- Counters and locks are updated often: leave room for their next row versions on the page.
    fillfactor = 70,
    -- The table may have millions of rows. The default is to vacuum when a fifth of them is dead.
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 500,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_analyze_threshold = 500,
    -- To cut off empty pages, vacuum takes an ACCESS EXCLUSIVE lock, and the table soon needs the
    -- pages again.
    vacuum_truncate = off,
    toast.vacuum_truncate = off,
    toast.autovacuum_vacuum_scale_factor = 0.01,
    toast.autovacuum_vacuum_threshold = 500
);

-- For the sweep. An incr keeps the expiry, so it changes no indexed column and adds no index entry.
CREATE INDEX marker_expiry ON queen_mq.marker (expires_at) WHERE expires_at IS NOT NULL;

SELECT pg_catalog.pg_extension_config_dump('queen_mq.marker', '');
SELECT pg_catalog.pg_extension_config_dump('queen_mq.marker_version', '');

-- Row estimates for the planner. pgrx cannot declare them.
ALTER FUNCTION @extschema@.queen_kv_get(text, text) ROWS 1;
ALTER FUNCTION @extschema@.queen_kv_get_many(text, text[]) ROWS 10;
ALTER FUNCTION @extschema@.queen_kv_list(text, text, text, integer) ROWS 100;
ALTER FUNCTION @extschema@.queen_kv_put(text, text, jsonb, interval, boolean, bigint, boolean) ROWS 1;
ALTER FUNCTION @extschema@.queen_kv_put_if_absent(text, text, jsonb, interval, boolean, boolean) ROWS 1;
ALTER FUNCTION @extschema@.queen_kv_delete(text, text, bigint, boolean) ROWS 1;
ALTER FUNCTION @extschema@.queen_kv_incr(text, text, numeric, interval, boolean, numeric, numeric, boolean) ROWS 1;
ALTER FUNCTION @extschema@.queen_kv_check(text, text, bigint, boolean) ROWS 1;

COMMENT ON TABLE queen_mq.marker IS
    'Key/value markers. Only the queen_kv functions and queen_tx_commit write them. Read them with queen_kv_get and queen_kv_list.';
COMMENT ON COLUMN queen_mq.marker.version IS
    'Every write draws a new version. No version is used again.';
COMMENT ON COLUMN queen_mq.marker.expires_at IS
    'From this moment on the marker does not exist, even if the row is still there. NULL: it does not expire.';
COMMENT ON COLUMN queen_mq.marker.created_at IS
    'When this marker was created. A write over an expired row creates a new marker.';
COMMENT ON SEQUENCE queen_mq.marker_version IS
    'Versions of markers: unique, compared for equality only';
COMMENT ON INDEX queen_mq.marker_expiry IS
    'Finds expired markers for the sweep';
COMMENT ON FUNCTION @extschema@.queen_kv_get(text, text) IS
    'Read one marker. Returns one row, also if there is no marker.';
COMMENT ON FUNCTION @extschema@.queen_kv_get_many(text, text[]) IS
    'Read several markers of a namespace, all as of one moment. Returns a row for each key, in the order given.';
COMMENT ON FUNCTION @extschema@.queen_kv_list(text, text, text, integer) IS
    'List the markers of a namespace whose key begins with prefix (taken literally), in the byte order of the keys: those behind the key after, at most max_rows (1 to 1000).';
COMMENT ON FUNCTION @extschema@.queen_kv_put(text, text, jsonb, interval, boolean, bigint, boolean) IS
    'Write a marker. Give exactly one of ttl and forever => true. expect: 0, the marker must not exist; a version, it must have exactly this one. If not applied, the reason is exists, absent or version; with required, it is error QN010.';
COMMENT ON FUNCTION @extschema@.queen_kv_put_if_absent(text, text, jsonb, interval, boolean, boolean) IS
    'Write a marker unless there is one. Of concurrent calls one wins. The others wait for its transaction, and get the reason exists with its value and version; with required, error QN010. Give exactly one of ttl and forever => true.';
COMMENT ON FUNCTION @extschema@.queen_kv_delete(text, text, bigint, boolean) IS
    'Delete a marker, and return what it was. expect: 0, the marker must not exist; a version, it must have exactly this one. If not applied, the reason is absent, version or exists; with required, it is error QN010.';
COMMENT ON FUNCTION @extschema@.queen_kv_incr(text, text, numeric, interval, boolean, numeric, numeric, boolean) IS
    'Add delta to a marker that is a number, or to 0 if there is none. A sum outside min and max is refused, not clipped. Give exactly one of ttl and forever => true; it takes effect only in the call that creates the marker. If not applied, the reason is limit or type; with required, it is error QN010.';
COMMENT ON FUNCTION @extschema@.queen_kv_check(text, text, bigint, boolean) IS
    'Assert that a marker has exactly the version expect (0: that it does not exist). A marker that has this version keeps it until the transaction ends. If not applied, the reason is exists, absent or version; with required, it is error QN010.';
