-- The end of every script of the extension: of the install script and of every upgrade script. It
-- gives all objects of the extension to the role that created the extension, and takes from PUBLIC
-- the right to call its routines.
--
-- PostgreSQL runs the script of a trusted extension as the superuser that initdb made, so at first
-- that superuser owns the objects. Other roles can make an object run code: a trigger, a default or
-- an operator. This code runs with the owner's rights. So the owner must be the role that created
-- the extension, and not the superuser.
DO $$
DECLARE
    member pg_catalog.record;
    owner text;
BEGIN
    SELECT pg_catalog.pg_get_userbyid(e.extowner) INTO STRICT owner
    FROM pg_catalog.pg_extension e WHERE e.extname OPERATOR(pg_catalog.=) 'queen_mq';

    FOR member IN
        SELECT CASE WHEN d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
                        THEN 'ROUTINE'
                    WHEN c.oid IS NULL THEN 'SCHEMA'
                    WHEN c.relkind OPERATOR(pg_catalog.=) 'v' THEN 'VIEW'
                    WHEN c.relkind OPERATOR(pg_catalog.=) 'S' THEN 'SEQUENCE'
                    ELSE 'TABLE'
               END AS kind,
               CASE WHEN d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
                        THEN d.objid::pg_catalog.regprocedure::pg_catalog.text
                    WHEN c.oid IS NULL THEN d.objid::pg_catalog.regnamespace::pg_catalog.text
                    ELSE d.objid::pg_catalog.regclass::pg_catalog.text
               END AS name
        FROM pg_catalog.pg_depend d
        JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
        LEFT JOIN pg_catalog.pg_class c
            ON d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass
           AND c.oid OPERATOR(pg_catalog.=) d.objid
        WHERE d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
          AND d.deptype OPERATOR(pg_catalog.=) 'e'
          AND e.extname OPERATOR(pg_catalog.=) 'queen_mq'
          AND (d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
               OR d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_namespace'::pg_catalog.regclass
               -- The sequence of a column changes its owner with its table.
               OR c.relkind OPERATOR(pg_catalog.=) ANY (ARRAY['r', 'v', 'S']::pg_catalog."char"[])
                  AND NOT EXISTS (
                      SELECT FROM pg_catalog.pg_depend o
                      WHERE o.classid OPERATOR(pg_catalog.=) d.classid
                        AND o.objid OPERATOR(pg_catalog.=) d.objid
                        AND o.refclassid OPERATOR(pg_catalog.=) d.classid
                        AND o.deptype OPERATOR(pg_catalog.=) ANY (ARRAY['a', 'i']::pg_catalog."char"[])))
    LOOP
        EXECUTE pg_catalog.format('ALTER %s %s OWNER TO %I', member.kind, member.name, owner);
        IF member.kind OPERATOR(pg_catalog.=) 'ROUTINE' THEN
            EXECUTE pg_catalog.format('REVOKE ALL ON ROUTINE %s FROM PUBLIC', member.name);
        END IF;
    END LOOP;
END
$$;
