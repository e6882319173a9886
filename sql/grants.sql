-- The role that creates the extension may use everything, let others use it, and dump it; PUBLIC
-- nothing.

GRANT USAGE ON SCHEMA queen_mq TO @extowner@;
GRANT SELECT ON ALL TABLES IN SCHEMA queen_mq TO @extowner@;
GRANT SELECT ON ALL SEQUENCES IN SCHEMA queen_mq TO @extowner@;
GRANT SELECT ON @extschema@.queen_messages, @extschema@.queen_dead_letters, @extschema@.queen_groups,
    @extschema@.queen_queues, @extschema@.queen_leases, @extschema@.queen_timers
    TO @extowner@ WITH GRANT OPTION;

-- Every function of the extension, whatever its signature.
DO $$
DECLARE
    f pg_catalog.regprocedure;
BEGIN
    FOR f IN
        SELECT d.objid::pg_catalog.regprocedure
        FROM pg_catalog.pg_depend d
        JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
        WHERE d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
          AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
          AND d.deptype OPERATOR(pg_catalog.=) 'e'
          AND e.extname OPERATOR(pg_catalog.=) 'queen_mq'
    LOOP
        EXECUTE pg_catalog.format('REVOKE ALL ON ROUTINE %s FROM PUBLIC', f);
        EXECUTE pg_catalog.format('GRANT EXECUTE ON ROUTINE %s TO @extowner@ WITH GRANT OPTION', f);
    END LOOP;
END
$$;
