-- Payloads that do not fit into a page are compressed. lz4 does that several times faster than
-- PostgreSQL's own method, and decompresses faster. A server may be built without it; then the
-- setting default_toast_compression decides, as for any column.
DO $$
BEGIN
    ALTER TABLE queen_mq.segment
        ALTER payloads SET COMPRESSION lz4,
        ALTER transaction_ids SET COMPRESSION lz4,
        ALTER headers SET COMPRESSION lz4;
    ALTER TABLE queen_mq.timer
        ALTER payload SET COMPRESSION lz4, ALTER headers SET COMPRESSION lz4;
    ALTER TABLE queen_mq.dead_letter
        ALTER payload SET COMPRESSION lz4, ALTER headers SET COMPRESSION lz4;
    ALTER TABLE queen_mq.marker ALTER value SET COMPRESSION lz4;
EXCEPTION
    -- compression method lz4 not supported
    WHEN feature_not_supported THEN NULL;
END
$$;
