-- The end of every script of the extension: of the install script and of every upgrade script. It
-- gives all objects of the extension to the role that created the extension, takes from PUBLIC the
-- right to call its routines, and sees to it that dumps carry what other roles have been granted.
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

-- A right that a script grants or takes becomes an *initial* right of the object, with all others that
-- the object has by then. pg_dump leaves initial rights out, because CREATE EXTENSION gives them where
-- the dump is restored. It gives other roles none. So what roles have been granted on objects of the
-- extension, before this script and by it, is taken from the initial rights.
UPDATE pg_catalog.pg_init_privs i
SET initprivs = ARRAY(
    SELECT a.item FROM pg_catalog.unnest(i.initprivs) WITH ORDINALITY AS a(item, place)
    WHERE EXISTS (SELECT FROM pg_catalog.aclexplode(ARRAY[a.item]) x
                  WHERE x.grantee OPERATOR(pg_catalog.=) e.extowner)
    ORDER BY a.place)
FROM pg_catalog.pg_depend d
JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
WHERE d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
  AND d.deptype OPERATOR(pg_catalog.=) 'e'
  AND e.extname OPERATOR(pg_catalog.=) 'queen_mq'
  AND d.classid OPERATOR(pg_catalog.=) i.classoid
  AND d.objid OPERATOR(pg_catalog.=) i.objoid
  AND EXISTS (SELECT FROM pg_catalog.aclexplode(i.initprivs) x
              WHERE x.grantee OPERATOR(pg_catalog.<>) e.extowner);
-- Where the owner has what an owner has by itself, there is nothing to say. (PUBLIC has EXECUTE by
-- itself, so of a function there is.)
DELETE FROM pg_catalog.pg_init_privs i
USING pg_catalog.pg_depend d
JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
WHERE d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
  AND d.deptype OPERATOR(pg_catalog.=) 'e'
  AND e.extname OPERATOR(pg_catalog.=) 'queen_mq'
  AND d.classid OPERATOR(pg_catalog.=) i.classoid
  AND d.objid OPERATOR(pg_catalog.=) i.objoid
  AND d.classid OPERATOR(pg_catalog.<>) 'pg_catalog.pg_proc'::pg_catalog.regclass;
-- From version 17 on, PostgreSQL notes which roles are named in initial rights, and keeps them.
DELETE FROM pg_catalog.pg_shdepend s
USING pg_catalog.pg_depend d
JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
WHERE d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
  AND d.deptype OPERATOR(pg_catalog.=) 'e'
  AND e.extname OPERATOR(pg_catalog.=) 'queen_mq'
  AND s.dbid OPERATOR(pg_catalog.=) (SELECT b.oid FROM pg_catalog.pg_database b
      WHERE b.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
  AND s.deptype OPERATOR(pg_catalog.=) 'i'
  AND s.refobjid OPERATOR(pg_catalog.<>) e.extowner
  AND s.classid OPERATOR(pg_catalog.=) d.classid
  AND s.objid OPERATOR(pg_catalog.=) d.objid;
