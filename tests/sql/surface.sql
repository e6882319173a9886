-- What users can call and read. Nothing becomes public by accident.
\pset format unaligned
\pset tuples_only on

CREATE TEMPORARY VIEW member AS
SELECT classid, objid FROM pg_depend
WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
  AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'queen_mq');

SELECT p.proname || '(' || pg_get_function_arguments(p.oid) || ')' || coalesce(' -> ' || pg_get_function_result(p.oid), ' procedure')
FROM pg_proc p JOIN member ON classid = 'pg_proc'::regclass AND objid = p.oid
WHERE p.pronamespace = 'public'::regnamespace ORDER BY p.proname COLLATE "C", p.oid;

SELECT c.relname || '(' || string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', ' ORDER BY a.attnum) || ')'
FROM pg_class c JOIN member ON classid = 'pg_class'::regclass AND objid = c.oid
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
WHERE c.relnamespace = 'public'::regnamespace GROUP BY c.relname ORDER BY c.relname COLLATE "C";

-- The extension's state is in a schema of its own.
SELECT DISTINCT relnamespace::regnamespace FROM pg_class JOIN member ON objid = oid WHERE relkind IN ('r', 'S');

-- Objects without a comment:
SELECT pg_describe_object(classid, objid, 0) FROM member
WHERE obj_description(objid, CASE classid WHEN 'pg_proc'::regclass THEN 'pg_proc' ELSE 'pg_class' END) IS NULL
  AND (classid = 'pg_proc'::regclass OR objid IN (SELECT oid FROM pg_class WHERE relkind IN ('r', 'v'))) ORDER BY 1;

-- Functions that are declared to run with other rights or settings than their caller's: triggers,
-- which run when a dump is restored, and what queen_grant runs. (The others switch to the extension's
-- owner themselves, after PostgreSQL has checked the caller's right to EXECUTE.)
SELECT p.oid::regprocedure FROM pg_proc p JOIN member ON classid = 'pg_proc'::regclass AND objid = p.oid
WHERE p.prosecdef OR p.proconfig IS NOT NULL ORDER BY 1;

-- What PUBLIC may use:
SELECT p.oid::regprocedure FROM pg_proc p JOIN member ON classid = 'pg_proc'::regclass AND objid = p.oid,
       aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS acl WHERE acl.grantee = 0;
SELECT c.oid::regclass FROM pg_class c JOIN member ON classid = 'pg_class'::regclass AND objid = c.oid,
       aclexplode(c.relacl) AS acl WHERE acl.grantee = 0;
