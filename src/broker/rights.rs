//! Who may do what: each call asks here, with the name of the queue or the namespace that it is
//! about, before it looks whether there is one. So a refusal says nothing of what is there.
//!
//! The role that counts is the one that has called (`guard::caller`): after SET ROLE that one, and
//! in a SECURITY DEFINER function of an application the function's owner. It has what was granted
//! to it and to the roles whose privileges it has as a member. The role that owns the extension,
//! its members and superusers may do everything.
//!
//! **What it costs.** For the owner, a comparison of two numbers. For other roles, a look-up in the
//! memory of the session, which has all that a role may do. The session hears of a grant, and of a
//! change of roles or memberships, by PostgreSQL's invalidation messages, and then reads the table
//! `grants` anew: under the latest snapshot, also in REPEATABLE READ, as PostgreSQL itself does for
//! its own rights. Messages about other tables change nothing. No lock is taken.
//!
//! Which functions a privilege lets a role call at all, `api::signatures` says.

use std::rc::Rc;

use pgrx::pg_sys;
use queen_engine::rights::{ALL_OF_THEM, GrantedOn, Privilege, Rights};

use crate::error::{Code, Error, Result};
use crate::pg::session_cache::SessionCache;
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::{catalogue, changes, guard, roles};
use crate::store::grants::{self, Callables};

/// How many roles' rights a session remembers.
const REMEMBERED: usize = 64;

/// From before something was looked up: the owner of the extension, and the counts of changes of
/// grants and of roles.
type Heard = (pg_sys::Oid, u64, u64);

fn heard() -> Heard {
    (guard::acting(), changes::count_of_watched(), roles::changes())
}

thread_local! {
    static RIGHTS: SessionCache<u32, (Heard, Rc<Rights>)> = SessionCache::of(REMEMBERED);
}

/// Whether the calling role has the privilege on the queue, or the namespace, of this name.
pub fn may(privilege: Privilege, name: &str) -> Result<bool> {
    Ok(guard::acts_as_caller() || of_caller()?.allow(privilege, name))
}

/// Error 42501 unless the calling role has the privilege on the queue, or the namespace, of this
/// name, which need not exist.
pub fn require(privilege: Privilege, name: &str) -> Result<()> {
    match may(privilege, name)? {
        true => Ok(()),
        false => Err(refusal(privilege, Some(name))),
    }
}

/// Error 42501 unless the calling role may do what the owner of the extension may.
pub fn require_owner(function: &str) -> Result<()> {
    if guard::acts_as_caller() || of_caller()?.is_owner() {
        return Ok(());
    }
    Err(Error::new(
        Code::InsufficientPrivilege,
        format!("permission denied for function {function}"),
    )
    .detail(format!(
        "Role \"{}\" is neither the owner of the extension nor a member of that role.",
        caller_name()
    ))
    .hint("Call it as the owner. Other functions can be granted, with queen_grant."))
}

/// What the calling role may do. Error 42501 if it has the privilege on nothing.
pub fn require_some(privilege: Privilege) -> Result<Rc<Rights>> {
    let rights = rights_of_caller()?;
    match rights.allow_some(privilege) {
        true => Ok(rights),
        false => Err(refusal(privilege, None)),
    }
}

/// Whether the calling role has the privilege on the queue of this name; None: on all queues.
pub fn sees(privilege: Privilege, queue: Option<&str>) -> Result<bool> {
    let rights = rights_of_caller()?;
    Ok(match queue {
        Some(queue) => rights.allow(privilege, queue),
        None => rights.allow_all(privilege),
    })
}

fn rights_of_caller() -> Result<Rc<Rights>> {
    match guard::acts_as_caller() {
        true => Ok(Rc::new(Rights::of_owner())),
        false => of_caller(),
    }
}

/// What the role that has called may do at this moment: remembered, or read.
fn of_caller() -> Result<Rc<Rights>> {
    changes::hear_all();
    let role = guard::caller();
    let now = heard();
    let known = RIGHTS.with(|all| {
        all.change(&role.to_u32(), |(before, rights)| (*before == now).then(|| rights.clone()))
    });
    if let Some(known) = known.flatten() {
        return Ok(known);
    }
    grants::watch();
    let heard = heard();
    let rights = Rc::new(match roles::has_privileges_of(role, catalogue::owner()) {
        true => Rights::of_owner(),
        false => ActiveSnapshot::latest_snapshot(|under| Ok(grants::of_role(role, under)))?,
    });
    let size = rights.size();
    RIGHTS.with(|all| all.keep_heavy(role.to_u32(), (heard, rights.clone()), size));
    Ok(rights)
}

fn caller_name() -> String {
    let role = guard::caller();
    roles::name(role).unwrap_or_else(|| role.to_u32().to_string())
}

/// 42501, in words that do not depend on what there is. `name`: None for any of them.
pub fn refusal(privilege: Privilege, name: Option<&str>) -> Error {
    let (what, function) = match privilege.on() {
        GrantedOn::Namespace => ("namespace", "queen_grant_kv"),
        GrantedOn::Queue | GrantedOn::Everything => ("queue", "queen_grant"),
    };
    let (role, privilege) = (caller_name(), privilege.name());
    let (message, on, last) = match name {
        Some(name) => (
            format!("permission denied for {what} \"{name}\""),
            format!("on {what} \"{name}\""),
            format!(", {}", quoted(name)),
        ),
        None => (format!("permission denied for {what}s"), format!("on any {what}"), String::new()),
    };
    Error::new(Code::InsufficientPrivilege, message)
        .detail(format!("Role \"{role}\" lacks the privilege \"{privilege}\" {on}."))
        .hint(format!(
            "Let the owner of the extension run {function}({}, {}{last}).",
            quoted(&role),
            quoted(privilege)
        ))
}

/// As a literal of SQL.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// What is granted or revoked: a privilege, to or from the role of a name, on the queue or the
/// namespace of a name or on all of them (None).
pub struct GrantRequest<'a> {
    pub role: &'a str,
    pub privilege: Privilege,
    pub on: Option<&'a str>,
    /// Which functions and views a privilege needs.
    pub needed_by: fn(Privilege) -> Callables,
}

impl GrantRequest<'_> {
    fn target(&self) -> &str {
        self.on.unwrap_or(ALL_OF_THEM)
    }

    fn role(&self) -> Result<pg_sys::Oid> {
        roles::named(self.role).ok_or_else(|| {
            Error::new(Code::UndefinedObject, format!("role \"{}\" does not exist", self.role))
                .detail("Privileges are granted to roles by their names, as pg_roles has them.")
                .hint("Create the role first, or check the name: upper and lower case differ.")
        })
    }

    /// Grant it, with the right to call what it needs. False if it was granted so before. Waits for
    /// a transaction that changes grants.
    pub fn grant(&self, function: &str) -> Result<bool> {
        require_owner(function)?;
        let role = self.role()?;
        grants::lock();
        let is_new = grants::insert(role, self.role, self.privilege, self.target());
        grants::change_acl(role, &(self.needed_by)(self.privilege), true);
        Ok(is_new)
    }

    /// Take it back, with the right to call what nothing else needs that the role has been granted;
    /// from a former owner, all that a restore has granted it as such.
    /// On all of them: also where it was granted by a name. False if it was not granted. Waits for
    /// a transaction that changes grants.
    pub fn revoke(&self, function: &str) -> Result<bool> {
        require_owner(function)?;
        let role = self.role()?;
        grants::lock();
        if !grants::delete(role, self.privilege, self.target()) {
            return Ok(false);
        }
        let held = grants::held(role);
        // A former owner may call everything.
        if held.contains(&Privilege::Owner) {
            return Ok(true);
        }
        let mut needed = Callables::default();
        for Callables { functions, views } in held.into_iter().map(self.needed_by) {
            needed.functions.extend(functions);
            needed.views.extend(views);
        }
        if self.privilege == Privilege::Owner {
            grants::take_from_former_owner(role, &needed);
            return Ok(true);
        }
        let Callables { mut functions, mut views } = (self.needed_by)(self.privilege);
        functions.retain(|function| !needed.functions.contains(function));
        views.retain(|view| !needed.views.contains(view));
        grants::change_acl(role, &Callables { functions, views }, false);
        Ok(true)
    }
}
