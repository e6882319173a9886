-- Which role may do what. queen_grant and the like write these rows, and each call asks for the
-- right of the role that calls (src/broker/rights.rs).
--
-- A row belongs to the role with this OID. So a role that is renamed keeps its rights, and a role
-- that is created later under an old name gets none. A dump goes to another cluster, where OIDs mean
-- other roles. So it carries names, and where its rows are loaded, the trigger below finds the roles
-- of these names there. The number of the installation says that a row has been through this: a row
-- of another installation, for which no trigger has run, gives no right.

CREATE TABLE queen_mq.grants (
    role_name text COLLATE "C" NOT NULL,    -- what the role was called when this was written
    role_oid oid NOT NULL,
    installation bigint NOT NULL,
    privilege text COLLATE "C" NOT NULL,
    -- The name of a queue, or of a namespace of markers. The empty name stands for all of them.
    target text COLLATE "C" NOT NULL DEFAULT '',
    CONSTRAINT grants_once PRIMARY KEY (role_oid, privilege, target)
);
COMMENT ON TABLE queen_mq.grants IS 'Which role has which privilege, on which queue or namespace (the empty name: on all of them)';

CREATE FUNCTION queen_mq.find_grantee() RETURNS trigger LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT r.oid INTO NEW.role_oid FROM pg_catalog.pg_roles r
    WHERE r.rolname::pg_catalog.text OPERATOR(pg_catalog.=) NEW.role_name;
    IF NOT FOUND THEN
        RAISE WARNING 'role "%", which had the privilege % of queen_mq where the dump was made, does not exist here', NEW.role_name, NEW.privilege
            USING HINT = 'Call queen_grant or queen_grant_kv for the role that takes its place.';
        RETURN NULL;
    END IF;
    SELECT i.id INTO STRICT NEW.installation FROM queen_mq.installation i;
    -- The former owner's privilege comes from the table owner as well. What another installation has
    -- written gives no right, and must not be in the way.
    DELETE FROM queen_mq.grants g
    WHERE g.role_oid OPERATOR(pg_catalog.=) NEW.role_oid
      AND g.privilege OPERATOR(pg_catalog.=) NEW.privilege
      AND g.target OPERATOR(pg_catalog.=) NEW.target
      AND g.installation OPERATOR(pg_catalog.<>) NEW.installation;
    IF EXISTS (SELECT FROM queen_mq.grants g
               WHERE g.role_oid OPERATOR(pg_catalog.=) NEW.role_oid
                 AND g.privilege OPERATOR(pg_catalog.=) NEW.privilege
                 AND g.target OPERATOR(pg_catalog.=) NEW.target)
    THEN
        RETURN NULL;
    END IF;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION queen_mq.find_grantee() IS
    'Finds the role that a row of queen_mq.grants names, when a dump is restored';

CREATE TRIGGER grantee BEFORE INSERT ON queen_mq.grants
    FOR EACH ROW EXECUTE FUNCTION queen_mq.find_grantee();

-- A dump must not carry the name of a role that has been dropped, or that has another name by now:
-- where it is restored, another role may have this name. The sweep writes new names down.
SELECT pg_catalog.pg_extension_config_dump('queen_mq.grants',
    'WHERE installation OPERATOR(pg_catalog.=) (SELECT id FROM queen_mq.installation)
       AND EXISTS (SELECT FROM pg_catalog.pg_roles r
                   WHERE r.oid OPERATOR(pg_catalog.=) role_oid
                     AND r.rolname::pg_catalog.text OPERATOR(pg_catalog.=) role_name)');

-- Functions and views of the extension have owners and rights of PostgreSQL as well, by which a role
-- may call or read them at all. The owner has these by itself.
CREATE FUNCTION queen_mq.change_acl(role oid, functions text[], views text[], is_granted boolean)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    member pg_catalog.record;
BEGIN
    FOR member IN
        SELECT CASE WHEN p.oid IS NOT NULL
                    THEN pg_catalog.format('EXECUTE ON ROUTINE %s',
                                           p.oid::pg_catalog.regprocedure::pg_catalog.text)
                    ELSE pg_catalog.format('SELECT ON TABLE %s',
                                           c.oid::pg_catalog.regclass::pg_catalog.text)
               END AS what
        FROM pg_catalog.pg_depend d
        JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
        LEFT JOIN pg_catalog.pg_proc p
            ON d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
           AND p.oid OPERATOR(pg_catalog.=) d.objid
           AND p.proname::pg_catalog.text OPERATOR(pg_catalog.=) ANY (functions)
        LEFT JOIN pg_catalog.pg_class c
            ON d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass
           AND c.oid OPERATOR(pg_catalog.=) d.objid
           AND c.relkind OPERATOR(pg_catalog.=) 'v'
           AND c.relname::pg_catalog.text OPERATOR(pg_catalog.=) ANY (views)
        WHERE d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
          AND d.deptype OPERATOR(pg_catalog.=) 'e'
          AND e.extname OPERATOR(pg_catalog.=) 'queen_mq'
          AND COALESCE(p.proowner, c.relowner) OPERATOR(pg_catalog.<>) role
          AND EXISTS (SELECT FROM pg_catalog.aclexplode(COALESCE(p.proacl, c.relacl)) a
                      WHERE a.grantee OPERATOR(pg_catalog.=) role
                        -- What another role has granted goes when that role loses its own.
                        AND a.grantor OPERATOR(pg_catalog.=) COALESCE(p.proowner, c.relowner)
                        AND a.privilege_type OPERATOR(pg_catalog.=) ANY (ARRAY['EXECUTE', 'SELECT']))
              OPERATOR(pg_catalog.<>) is_granted
    LOOP
        EXECUTE pg_catalog.format(
            CASE WHEN is_granted THEN 'GRANT %s TO %I' ELSE 'REVOKE %s FROM %I CASCADE' END,
            member.what, pg_catalog.pg_get_userbyid(role));
    END LOOP;
END
$$;
COMMENT ON FUNCTION queen_mq.change_acl(oid, text[], text[], boolean) IS
    'Grants EXECUTE on functions and SELECT on views of the extension, or revokes it';
