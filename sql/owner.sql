-- A dump keeps granted rights, but not the owner of the extension. The role that restores the dump
-- owns the extension there. So this table holds the owner's name, and pg_dump dumps it as data. When
-- the name is restored, a trigger grants the role of that name all that it could do as the owner:
-- the rights of PostgreSQL on all objects, and the privilege owner of the extension. From then on
-- the role has these rights by grants, which dumps keep. So the trigger deletes the role's name here.

CREATE TABLE queen_mq.owner (
    role_name text COLLATE "C" NOT NULL
);
-- The table has no key, because the row of a dump must not collide with the row that is here. A
-- publication for all tables forbids changes of a table without a key, unless it has REPLICA
-- IDENTITY FULL.
ALTER TABLE queen_mq.owner REPLICA IDENTITY FULL;
COMMENT ON TABLE queen_mq.owner IS 'The name of the role that owns the extension, for dumps. The sweep corrects it after a change of the owner.';
INSERT INTO queen_mq.owner
SELECT pg_catalog.pg_get_userbyid(e.extowner)
FROM pg_catalog.pg_extension e WHERE e.extname OPERATOR(pg_catalog.=) 'queen_mq';

-- What the trigger below grants, taken again, but for what the role needs for other privileges.
CREATE FUNCTION queen_mq.take_from_former_owner(role oid, functions text[], views text[])
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    member pg_catalog.record;
BEGIN
    FOR member IN
        SELECT CASE WHEN p.oid IS NOT NULL
                    THEN pg_catalog.format('EXECUTE ON ROUTINE %s',
                                           p.oid::pg_catalog.regprocedure::pg_catalog.text)
                    WHEN n.oid IS NOT NULL
                    THEN pg_catalog.format('USAGE ON SCHEMA %s',
                                           n.oid::pg_catalog.regnamespace::pg_catalog.text)
                    ELSE pg_catalog.format('SELECT ON %s %s',
                                           CASE WHEN c.relkind OPERATOR(pg_catalog.=) 'S'
                                                THEN 'SEQUENCE' ELSE 'TABLE' END,
                                           c.oid::pg_catalog.regclass::pg_catalog.text)
               END AS what,
               COALESCE(p.proname::pg_catalog.text OPERATOR(pg_catalog.=) ANY (functions),
                        c.relkind OPERATOR(pg_catalog.=) 'v'
                        AND c.relname::pg_catalog.text OPERATOR(pg_catalog.=) ANY (views),
                        false) AS is_needed
        FROM pg_catalog.pg_depend d
        JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
        LEFT JOIN pg_catalog.pg_proc p
            ON d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
           AND p.oid OPERATOR(pg_catalog.=) d.objid
        LEFT JOIN pg_catalog.pg_class c
            ON d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass
           AND c.oid OPERATOR(pg_catalog.=) d.objid
        LEFT JOIN pg_catalog.pg_namespace n
            ON d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_namespace'::pg_catalog.regclass
           AND n.oid OPERATOR(pg_catalog.=) d.objid
        WHERE d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
          AND d.deptype OPERATOR(pg_catalog.=) 'e'
          AND e.extname OPERATOR(pg_catalog.=) 'queen_mq'
          AND COALESCE(p.proowner, c.relowner, n.nspowner) OPERATOR(pg_catalog.<>) role
          AND EXISTS (SELECT FROM pg_catalog.aclexplode(COALESCE(p.proacl, c.relacl, n.nspacl)) a
                      WHERE a.grantee OPERATOR(pg_catalog.=) role)
    LOOP
        EXECUTE pg_catalog.format(
            CASE WHEN member.is_needed THEN 'REVOKE GRANT OPTION FOR %s FROM %I CASCADE'
                 ELSE 'REVOKE %s FROM %I CASCADE' END,
            member.what, pg_catalog.pg_get_userbyid(role));
    END LOOP;
END
$$;
COMMENT ON FUNCTION queen_mq.take_from_former_owner(oid, text[], text[]) IS
    'Takes from a role what a restore has granted it as the former owner, but for what it needs otherwise';

CREATE FUNCTION queen_mq.grant_to_former_owner() RETURNS trigger LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    member pg_catalog.record;
BEGIN
    IF EXISTS (
        SELECT FROM pg_catalog.pg_extension e
        WHERE e.extname OPERATOR(pg_catalog.=) 'queen_mq'
          AND pg_catalog.pg_get_userbyid(e.extowner)::pg_catalog.text
              OPERATOR(pg_catalog.=) NEW.role_name)
    THEN
        -- The role owns the extension here, too. One row of its name is enough.
        DELETE FROM queen_mq.owner o
        WHERE o.role_name OPERATOR(pg_catalog.=) NEW.role_name
          AND EXISTS (SELECT FROM queen_mq.owner first
                      WHERE first.role_name OPERATOR(pg_catalog.=) o.role_name
                        AND first.ctid OPERATOR(pg_catalog.<) o.ctid);
        RETURN NULL;
    END IF;
    DELETE FROM queen_mq.owner o WHERE o.role_name OPERATOR(pg_catalog.=) NEW.role_name;
    IF NOT EXISTS (
        SELECT FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) NEW.role_name)
    THEN
        RAISE WARNING 'role "%", which owned queen_mq where the dump was made, does not exist here', NEW.role_name
            USING HINT = 'Make the role that takes its place a member of the owner of the extension, or grant it privileges with queen_grant.';
        RETURN NULL;
    END IF;
    INSERT INTO queen_mq.grants (role_name, privilege) VALUES (NEW.role_name, 'owner')
    ON CONFLICT ON CONSTRAINT grants_once DO NOTHING;
    EXECUTE pg_catalog.format('GRANT USAGE ON SCHEMA queen_mq TO %I WITH GRANT OPTION', NEW.role_name);
    FOR member IN
        SELECT CASE WHEN d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
                    THEN pg_catalog.format('EXECUTE ON ROUTINE %s',
                                           d.objid::pg_catalog.regprocedure::pg_catalog.text)
                    ELSE pg_catalog.format('SELECT ON %s %s',
                                           CASE WHEN c.relkind OPERATOR(pg_catalog.=) 'S'
                                                THEN 'SEQUENCE' ELSE 'TABLE' END,
                                           d.objid::pg_catalog.regclass::pg_catalog.text)
               END AS what
        FROM pg_catalog.pg_depend d
        JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
        LEFT JOIN pg_catalog.pg_class c
            ON d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass
           AND c.oid OPERATOR(pg_catalog.=) d.objid
        WHERE d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
          AND d.deptype OPERATOR(pg_catalog.=) 'e'
          AND e.extname OPERATOR(pg_catalog.=) 'queen_mq'
          AND (d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
               OR c.relkind OPERATOR(pg_catalog.=) ANY (ARRAY['r', 'v', 'S']::pg_catalog."char"[]))
    LOOP
        EXECUTE pg_catalog.format('GRANT %s TO %I WITH GRANT OPTION', member.what, NEW.role_name);
    END LOOP;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queen_mq.grant_to_former_owner() IS
    'Grants the former owner''s rights to the role that owned the extension where a restored dump was made';

CREATE TRIGGER former_owner AFTER INSERT ON queen_mq.owner
    FOR EACH ROW EXECUTE FUNCTION queen_mq.grant_to_former_owner();

-- A dump must not carry the name of a role that has another name by now, or has given the extension
-- away: where it is restored, another role may have this name. The sweep writes the new name down.
SELECT pg_catalog.pg_extension_config_dump('queen_mq.owner',
    'WHERE role_name OPERATOR(pg_catalog.=)
           (SELECT pg_catalog.pg_get_userbyid(e.extowner)::pg_catalog.text
            FROM pg_catalog.pg_extension e WHERE e.extname OPERATOR(pg_catalog.=) ''queen_mq'')');
