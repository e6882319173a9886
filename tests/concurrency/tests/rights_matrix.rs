//! Each function and each view asks for its privilege, on the queue or the namespace that the call
//! is about, whichever way a role has come to call it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use queen_tests::cluster::Cluster;
use queen_tests::containment::{CALLS, Call, PREPARE, Ready};
use queen_tests::{Fails, Session, TestDb};
use tokio_postgres::Error;

/// What a role must have been granted for the calls of these names, in the words of the reference.
/// `owner` is no privilege: the owner of the extension alone may make the call.
const NEEDED: &[(&str, &[&str])] = &[
    ("queen_push", &["push"]),
    ("queen_push_batch", &["push"]),
    ("queen_push_items", &["push"]),
    ("queen_publish", &["push"]),
    ("queen_schedule", &["push"]),
    ("queen_every", &["push"]),
    ("queen_cancel", &["push"]),
    ("queen_pop", &["pop"]),
    ("queen_pop_any", &["pop"]),
    ("queen_wait", &["pop"]),
    ("queen_ack", &["pop"]),
    ("queen_settle", &["pop"]),
    ("queen_extend", &["pop"]),
    ("queen_subscribe", &["pop"]),
    ("queen_message_status", &["pop"]),
    ("queen_unsubscribe", &["manage"]),
    ("queen_seek", &["manage"]),
    ("queen_configure", &["manage"]),
    ("queen_configure_group", &["manage"]),
    ("queen_pause", &["manage"]),
    ("queen_resume", &["manage"]),
    ("queen_purge", &["manage"]),
    ("queen_delete_queue", &["manage"]),
    ("queen_bind", &["manage"]),
    ("queen_unbind", &["manage"]),
    ("queen_dead_letter_replay", &["manage"]),
    ("queen_dead_letter_replay_all", &["manage"]),
    ("queen_dead_letter_purge", &["manage"]),
    ("queen_kv_get", &["read"]),
    ("queen_kv_get_many", &["read"]),
    ("queen_kv_list", &["read"]),
    ("queen_kv_put", &["write"]),
    ("queen_kv_put_if_absent", &["write"]),
    ("queen_kv_delete", &["write"]),
    ("queen_kv_incr", &["write"]),
    ("queen_kv_check", &["write"]),
    ("queen_metrics", &["monitor"]),
    ("queen_prometheus", &["monitor"]),
    ("queen_tx_commit, ack", &["pop"]),
    ("queen_tx_commit, push", &["push"]),
    ("queen_tx_commit, put", &["write"]),
    ("queen_tx_commit, incr", &["write"]),
    ("queen_tx_commit, delete", &["write"]),
    ("queen_tx_commit, putIfAbsent", &["write"]),
    ("queen_tx_commit, schedule", &["push"]),
    ("queen_tx_commit, cancel", &["push"]),
    ("queen_tx_commit, everything", &["push", "pop", "read", "write"]),
    ("queen_sweep", &["owner"]),
    ("queen_worker_start", &["owner"]),
    ("queen_grant", &["owner"]),
    ("queen_revoke", &["owner"]),
    ("queen_grant_kv", &["owner"]),
    ("queen_revoke_kv", &["owner"]),
    ("queen_queues", &["monitor"]),
    ("queen_groups", &["monitor"]),
    ("queen_leases", &["monitor"]),
    ("queen_blocked", &["monitor"]),
    ("queen_bindings", &["monitor"]),
    ("queen_messages", &["pop"]),
    ("queen_dead_letters", &["pop"]),
    ("queen_timers", &["pop"]),
    ("queen_schedules", &["pop"]),
    ("queen_grants", &["push", "pop", "manage", "monitor", "read", "write"]),
];

const PRIVILEGES: [&str; 6] = ["push", "pop", "manage", "monitor", "read", "write"];

fn needed(call: &str) -> Result<&'static [&'static str]> {
    let is_called = |name: &str| {
        call.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', ',']))
    };
    let found =
        NEEDED.iter().filter(|(name, _)| is_called(name)).max_by_key(|(name, _)| name.len());
    found.map(|(_, needed)| *needed).with_context(|| format!("{call} is not in the list"))
}

/// A call that grants, or revokes, a privilege on a queue, or on a namespace of markers.
fn change(
    verb: &str,
    role: &str,
    privilege: &str,
    queue: Option<&str>,
    ns: Option<&str>,
) -> String {
    let (kind, on) = match privilege {
        "read" | "write" => ("_kv", ns),
        _ => ("", queue),
    };
    let on = on.map_or_else(String::new, |name| format!(", '{name}'"));
    format!("SELECT queen_{verb}{kind}('{role}', '{privilege}'{on});")
}

/// Roles that may EXECUTE and SELECT everything. `plain` has been granted nothing. `other` gets
/// what a call does not need on all there is, and what it needs on another queue. `this` gets what
/// a call needs, on its queue. `everywhere` has all privileges on all queues, and `member` is a
/// member of it. `outsider` may call a SECURITY DEFINER function of `everywhere`.
const ROLES: &str = "
    CREATE ROLE plain LOGIN; CREATE ROLE other LOGIN; CREATE ROLE this LOGIN;
    CREATE ROLE everywhere LOGIN; CREATE ROLE member LOGIN IN ROLE everywhere;
    CREATE ROLE outsider LOGIN;
    GRANT USAGE ON SCHEMA public TO PUBLIC;
    GRANT EXECUTE ON ALL ROUTINES IN SCHEMA public, queen_mq TO plain, other, this, everywhere;
    GRANT SELECT ON queen_queues, queen_groups, queen_leases, queen_blocked, queen_bindings,
        queen_messages, queen_dead_letters, queen_timers, queen_schedules, queen_grants
        TO plain, other, this, everywhere;
    CREATE SCHEMA app;
    CREATE FUNCTION app.wrapped(call text) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
        SET search_path = public, pg_temp
        AS 'DECLARE n bigint; BEGIN EXECUTE call INTO n; RETURN n; END';
    ALTER FUNCTION app.wrapped OWNER TO everywhere;
    GRANT USAGE ON SCHEMA app TO PUBLIC;";

/// A statement that makes the call, and counts the rows that it shows of its queue.
fn statement(call: &Call, ready: &Ready) -> String {
    let queue = ready.fill("{q}");
    // One queue alone: a grant on another one is not what is asked about.
    let alone = call.sql.replace("'{q} none', ", "");
    let sql = ready.fill(&alone).replace("20 s", "10 ms");
    match call.name {
        _ if sql.starts_with("CALL") => sql,
        "queen_metrics" => {
            format!("SELECT count(*) FROM {sql} WHERE labels ->> 'queue' = '{queue}'")
        }
        "queen_prometheus" => {
            format!("SELECT count(*) FROM {sql} AS text WHERE text LIKE '%\"{queue}\"%'")
        }
        _ if is_view(call) => format!("SELECT count(*) FROM {sql} WHERE queue = '{queue}'"),
        _ => format!("SELECT count(*) FROM {sql}"),
    }
}

fn is_view(call: &Call) -> bool {
    call.sql == call.name
}

/// How many rows the call shows; 0 for the procedure, which shows its row otherwise.
async fn made(session: &Session, sql: &str) -> Result<i64, Error> {
    match sql.starts_with("CALL") {
        true => session.run(sql).await.map(|()| 0),
        false => session.count(sql).await,
    }
}

struct Matrix {
    admin: Session,
    db: TestDb,
    _cluster: Cluster,
}

impl Matrix {
    async fn set_up() -> Result<Self> {
        let cluster = Cluster::start_with("fsync = off")?;
        let db = TestDb::create(&cluster.config()).await?;
        let admin = db.session().await?;
        admin.run(PREPARE).await?;
        admin.run(ROLES).await?;
        for privilege in PRIVILEGES {
            admin.run(&change("grant", "everywhere", privilege, None, None)).await?;
            admin.run(&change("grant", "other", privilege, None, None)).await?;
        }
        Ok(Self { admin, db, _cluster: cluster })
    }

    async fn role(&self, name: &str) -> Result<Session> {
        let mut config = self.db.config().clone();
        config.user(name);
        Ok(Session::open(&config).await?)
    }

    /// A queue with everything that a call needs, and a message that recurs.
    async fn ready(&self, name: &str) -> Result<Ready> {
        let ready = Ready::prepare(&self.admin, name).await?;
        let every = format!("SELECT queen_every('{name}', 'again', '@daily', '1')");
        self.admin.run(&every).await?;
        Ok(ready)
    }
}

/// Check that the call is refused, or shows nothing of its queue.
async fn is_refused(session: &Session, call: &Call, ready: &Ready, role: &str) -> Result<()> {
    let done = made(session, &statement(call, ready)).await;
    if is_view(call) || (call.name.starts_with("queen_metrics") && role == "other") {
        ensure!(done? == 0, "it shows the queue");
        return Ok(());
    }
    if call.name == "queen_prometheus" && role == "other" {
        ensure!(done? == 0, "it shows the queue");
        return Ok(());
    }
    let error = done.fails_with("42501")?;
    let (detail, hint) = (error.detail().unwrap_or_default(), error.hint().unwrap_or_default());
    ensure!(detail.contains(&format!("Role \"{role}\"")), "{error:?}");
    ensure!(hint.contains("queen_grant"), "{error:?}");
    let needed = needed(call.name)?;
    ensure!(
        needed == ["owner"] || needed.iter().any(|one| detail.contains(&format!("\"{one}\""))),
        "{error:?}"
    );
    Ok(())
}

/// Check that the call succeeds, and shows its queue where it shows any.
async fn is_allowed(session: &Session, call: &Call, ready: &Ready) -> Result<()> {
    let rows = made(session, &statement(call, ready)).await?;
    ensure!(rows > 0 || call.writes, "it shows nothing");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_privilege_on_this_very_queue_each_call_is_refused() -> Result<()> {
    let matrix = Matrix::set_up().await?;
    let admin = &matrix.admin;
    let [plain, other, boss] =
        [matrix.role("plain").await?, matrix.role("other").await?, matrix.db.session().await?];
    boss.run("SET ROLE plain").await?;
    for (number, call) in CALLS.iter().enumerate() {
        let needed = needed(call.name)?;
        let ready = matrix.ready(&format!("q{number}")).await?;
        is_refused(&plain, call, &ready, "plain").await.context(call.name)?;
        is_refused(&boss, call, &ready, "plain").await.context(call.name).context("SET ROLE")?;
        for privilege in needed.iter().filter(|one| **one != "owner") {
            admin.run(&change("revoke", "other", privilege, None, None)).await?;
            let on_others = change("grant", "other", privilege, Some("elsewhere"), Some("other"));
            admin.run(&on_others).await?;
        }
        is_refused(&other, call, &ready, "other").await.context(call.name).context("other")?;
        for privilege in needed.iter().filter(|one| **one != "owner") {
            admin.run(&change("grant", "other", privilege, None, None)).await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_privilege_each_call_is_made_whichever_way_a_role_has_it() -> Result<()> {
    let matrix = Matrix::set_up().await?;
    let admin = &matrix.admin;
    let [this, everywhere, member, outsider, boss] = [
        matrix.role("this").await?,
        matrix.role("everywhere").await?,
        matrix.role("member").await?,
        matrix.role("outsider").await?,
        matrix.db.session().await?,
    ];
    boss.run("SET ROLE everywhere").await?;
    for (number, call) in CALLS.iter().enumerate() {
        let needed = needed(call.name)?;
        if needed == ["owner"] {
            continue;
        }
        let what = |way: &str| format!("{}, {way}", call.name);
        let ready = matrix.ready(&format!("this {number}")).await?;
        for privilege in needed {
            for name in ["{q}", "{q} new", "{q} more", "{q} quiet"] {
                let sql = change("grant", "this", privilege, Some(&ready.fill(name)), Some("n"));
                admin.run(&sql).await?;
            }
        }
        is_allowed(&this, call, &ready).await.with_context(|| what("on this queue"))?;
        for (way, session) in
            [("on all queues", &everywhere), ("as a member", &member), ("after SET ROLE", &boss)]
        {
            let ready = matrix.ready(&format!("{way} {number}")).await?;
            is_allowed(session, call, &ready).await.with_context(|| what(way))?;
        }
        let ready = matrix.ready(&format!("definer {number}")).await?;
        let sql = statement(call, &ready);
        if !sql.starts_with("CALL") {
            let wrapped = format!("SELECT app.wrapped($w${sql}$w$)");
            let rows = outsider.count(&wrapped).await.with_context(|| what("by a definer"))?;
            ensure!(rows > 0 || call.writes, "{}", what("by a definer shows nothing"));
        }
    }
    Ok(())
}

/// Functions and views of the extension that stand in the schema in which users call them.
const PUBLIC_NAMES: &str = "
    WITH members AS (
        SELECT d.classid, d.objid FROM pg_depend AS d JOIN pg_extension AS e ON e.oid = d.refobjid
        WHERE d.refclassid = 'pg_extension'::regclass AND e.extname = 'queen_mq'
          AND d.deptype = 'e')
    SELECT p.proname::text, p.oid, true FROM pg_proc AS p JOIN members AS m ON m.objid = p.oid
    WHERE m.classid = 'pg_proc'::regclass AND p.pronamespace = 'public'::regnamespace
    UNION ALL
    SELECT c.relname::text, c.oid, false FROM pg_class AS c JOIN members AS m ON m.objid = c.oid
    WHERE m.classid = 'pg_class'::regclass AND c.relnamespace = 'public'::regnamespace";

/// By name: the privileges that are needed, of all calls of a function.
fn needed_by_name() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let mut all: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (call, needed) in NEEDED {
        let name = call.split([' ', ',']).next().unwrap_or_default();
        all.entry(name).or_default().extend(needed.iter().filter(|one| **one != "owner"));
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_lets_a_role_call_what_the_privilege_is_for_and_a_revoke_ends_that() -> Result<()> {
    let cluster = Cluster::start_with("fsync = off")?;
    let db = TestDb::create(&cluster.config()).await?;
    let admin = db.session().await?;
    admin.run("CREATE ROLE grantee").await?;
    let listed = needed_by_name();
    let public = admin.query(PUBLIC_NAMES, &[]).await?;
    let names: BTreeSet<String> = public.iter().map(|row| row.get(0)).collect();
    // A function, or a view, that is new is not in the list above.
    let known: BTreeSet<String> = listed.keys().map(|name| (*name).to_owned()).collect();
    assert_eq!(names, known);
    let may = "SELECT CASE WHEN $2 THEN has_function_privilege('grantee', $1::oid, 'EXECUTE')
                      ELSE has_table_privilege('grantee', $1::oid, 'SELECT') END";
    let mut rights = BTreeSet::new();
    // Of two privileges that need one function, the first is taken back before the second.
    let steps = PRIVILEGES.iter().map(|privilege| ("grant", *privilege));
    let steps = steps.chain(PRIVILEGES.iter().map(|privilege| ("revoke", *privilege)));
    for (verb, privilege) in steps {
        let is_done: bool = admin
            .query_one(&change(verb, "grantee", privilege, None, None).replace(';', ""), &[])
            .await?
            .get(0);
        ensure!(is_done, "{verb} {privilege}");
        match verb {
            "grant" => rights.insert(privilege),
            _ => rights.remove(privilege),
        };
        for row in &public {
            let (name, oid, is_function): (String, u32, bool) =
                (row.get(0), row.get(1), row.get(2));
            let has: bool = admin.row(may, &[&oid, &is_function]).await?.get(0);
            let expected = !listed[name.as_str()].is_disjoint(&rights);
            ensure!(has == expected, "{name} with {rights:?}: {has}");
        }
    }
    let left = "SELECT count(*) FROM pg_shdepend WHERE refobjid = 'grantee'::regrole";
    assert_eq!(admin.count(left).await?, 0);
    admin.run("DROP ROLE grantee").await?;
    Ok(())
}

#[test]
fn the_reference_says_which_function_needs_which_privilege() -> Result<()> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/rights.md");
    let text = fs::read_to_string(&page).with_context(|| page.display().to_string())?;
    let mut said: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in text.lines() {
        let Some((privilege, names)) = line.strip_prefix("| `").and_then(|l| l.split_once("` |"))
        else {
            continue;
        };
        for name in names.split('`').filter(|name| name.starts_with("queen_")) {
            said.entry(name).or_default().extend((privilege != "owner").then_some(privilege));
        }
    }
    assert_eq!(said, needed_by_name());
    Ok(())
}
