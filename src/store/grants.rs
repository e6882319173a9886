//! `queen_mq.grants`: which privileges roles have been granted, and on what. With them come rights
//! of PostgreSQL on functions and views, which the function `queen_mq.change_acl` of SQL changes.
//!
//! A row is of the role with its `role_oid`, whatever the role is called by now. It counts only if
//! this installation has written it: the trigger of the table, which finds the role of a dump by
//! its name, makes it so.

use pgrx::pg_sys;
use queen_engine::rights::{Privilege, Rights};

use super::identity;
use crate::pg::columns::{Arg, Columns, arg};
use crate::pg::relation;
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::spi::Statement;
use crate::pg::table::table;
use crate::pg::{catalogue, changes};

table! {
    GRANTS = c"grants";
    ROLE_NAME: c"role_name" TEXTOID,
    ROLE_OID: c"role_oid" OIDOID,
    INSTALLATION: c"installation" INT8OID,
    PRIVILEGE: c"privilege" TEXTOID,
    TARGET: c"target" TEXTOID,
}

static OF_ROLE: Statement = Statement::new(
    "SELECT g.privilege, g.target FROM queen_mq.grants AS g
     WHERE g.installation = $2 AND pg_has_role($1, g.role_oid, 'USAGE')",
    &[pg_sys::OIDOID, pg_sys::INT8OID],
);

/// What has been granted to the role, and to those whose privileges it has.
pub fn of_role(role: pg_sys::Oid, under: &ActiveSnapshot) -> Rights {
    let mut rights = Rights::default();
    for row in OF_ROLE.read(&[arg(role), arg(identity::own())], under) {
        let (privilege, target): (String, String) = (row.need(PRIVILEGE), row.need(TARGET));
        // A privilege that this version does not know gives nothing.
        if let Some(privilege) = Privilege::named(&privilege) {
            rights.add(privilege, &target);
        }
    }
    rights
}

/// Have every session, this one as well, read grants anew after a change of these rows, which
/// comes next.
fn announce() {
    changes::announce(catalogue::oid_of(GRANTS.name));
}

/// Count changes of grants from now on ([`changes::count_of_watched`]).
pub fn watch() {
    changes::watch(catalogue::oid_of(GRANTS.name));
}

static LOCK: Statement = Statement::new("UPDATE queen_mq.installation SET id = id", &[]);

/// Keep all other transactions from changing grants, to the end of this one: two of them would
/// collide in PostgreSQL's own rows about functions and views. Waits for a transaction that does.
/// The row is updated, so that a transaction whose snapshot is older than the last change gets
/// 40001, and does not go by what it sees.
pub fn lock() {
    LOCK.run(&[]);
}

static HELD: Statement = Statement::new(
    "SELECT DISTINCT privilege FROM queen_mq.grants WHERE role_oid = $1 AND installation = $2",
    &[pg_sys::OIDOID, pg_sys::INT8OID],
);

/// Which privileges have been granted to this very role, on anything.
pub fn held(role: pg_sys::Oid) -> Vec<Privilege> {
    let rows = HELD.run(&[arg(role), arg(identity::own())]);
    rows.filter_map(|row| Privilege::named(&row.need::<String>(PRIVILEGE))).collect()
}

static EXISTS: Statement = Statement::new(
    "SELECT FROM queen_mq.grants
     WHERE role_oid = $1 AND installation = $2 AND privilege = $3 AND target = $4",
    &[pg_sys::OIDOID, pg_sys::INT8OID, pg_sys::TEXTOID, pg_sys::TEXTOID],
);

fn exists(role: pg_sys::Oid, privilege: Privilege, target: &str) -> bool {
    let key = [arg(role), arg(identity::own()), arg(privilege.name()), arg(target)];
    EXISTS.run(&key).affected() > 0
}

// A row of this key that another installation has written does not count: the trigger deletes it.
static INSERT: Statement = Statement::new(
    "INSERT INTO queen_mq.grants (role_name, role_oid, installation, privilege, target)
     VALUES ($1, $2, $3, $4, $5)",
    &[pg_sys::TEXTOID, pg_sys::OIDOID, pg_sys::INT8OID, pg_sys::TEXTOID, pg_sys::TEXTOID],
);

/// Grant the privilege to a role, which has this name, on a target. False if it was so already. The
/// caller has called [`lock`].
pub fn insert(role: pg_sys::Oid, name: &str, privilege: Privilege, target: &str) -> bool {
    if exists(role, privilege, target) {
        return false;
    }
    announce();
    let row = [arg(name), arg(role), arg(identity::own()), arg(privilege.name()), arg(target)];
    if INSERT.run(&row).affected() == 0 {
        relation::refuse_suppression(&GRANTS);
    }
    true
}

// Of all targets: also the grants that name one.
static DELETE: Statement = Statement::new(
    "DELETE FROM queen_mq.grants
     WHERE role_oid = $1 AND privilege = $2 AND (target = $3 OR $3 = '')",
    &[pg_sys::OIDOID, pg_sys::TEXTOID, pg_sys::TEXTOID],
);

/// Take the privilege from a role: on a target, or on whatever it has it. False if it had none
/// there. The caller has called [`lock`].
pub fn delete(role: pg_sys::Oid, privilege: Privilege, target: &str) -> bool {
    announce();
    DELETE.run(&[arg(role), arg(privilege.name()), arg(target)]).affected() > 0
}

/// Functions and views of the extension, by their names.
#[derive(Clone, Debug, Default)]
pub struct Callables {
    pub functions: Vec<&'static str>,
    pub views: Vec<&'static str>,
}

impl Callables {
    fn args(&self) -> [Arg; 2] {
        [arg(self.functions.clone()), arg(self.views.clone())]
    }
}

static CHANGE_ACL: Statement = Statement::new(
    "SELECT queen_mq.change_acl($1, $2, $3, $4)",
    &[pg_sys::OIDOID, pg_sys::TEXTARRAYOID, pg_sys::TEXTARRAYOID, pg_sys::BOOLOID],
);

/// Give the role the right to call these functions and to read these views, or take it.
pub fn change_acl(role: pg_sys::Oid, on: &Callables, is_granted: bool) {
    let [functions, views] = on.args();
    CHANGE_ACL.run(&[arg(role), functions, views, arg(is_granted)]);
}

static TAKE_FROM_FORMER_OWNER: Statement = Statement::new(
    "SELECT queen_mq.take_from_former_owner($1, $2, $3)",
    &[pg_sys::OIDOID, pg_sys::TEXTARRAYOID, pg_sys::TEXTARRAYOID],
);

/// Take what a restore has granted the role as the former owner, but for the right to call and read
/// these.
pub fn take_from_former_owner(role: pg_sys::Oid, needed: &Callables) {
    let [functions, views] = needed.args();
    TAKE_FROM_FORMER_OWNER.run(&[arg(role), functions, views]);
}

static FORGET: Statement = Statement::new(
    "DELETE FROM queen_mq.grants WHERE ctid = ANY (ARRAY(
         SELECT g.ctid FROM queen_mq.grants AS g
         WHERE g.installation = $1
           AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles AS r WHERE r.oid = g.role_oid)
         FOR UPDATE SKIP LOCKED))",
    &[pg_sys::INT8OID],
);
static RENAME: Statement = Statement::new(
    "UPDATE queen_mq.grants AS g SET role_name = r.rolname::text
     FROM pg_catalog.pg_roles AS r
     WHERE r.oid = g.role_oid AND g.ctid = ANY (ARRAY(
         SELECT s.ctid FROM queen_mq.grants AS s
         WHERE s.installation = $1
           AND s.role_name <> (SELECT n.rolname::text FROM pg_catalog.pg_roles AS n
                               WHERE n.oid = s.role_oid)
         FOR UPDATE SKIP LOCKED))",
    &[pg_sys::INT8OID],
);

/// Forget what was granted to roles that are gone, and write down the new names of those that have
/// been renamed: a dump carries names.
pub fn follow_roles() {
    let own = [arg(identity::own())];
    FORGET.run(&own);
    RENAME.run(&own);
}
