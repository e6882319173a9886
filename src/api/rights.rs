//! `queen_grant`, `queen_revoke`, `queen_grant_kv`, `queen_revoke_kv`: which role may do what. What
//! a call asks for is in [`crate::broker::rights`], and what each function needs in
//! [`super::signatures`].

use pgrx::prelude::*;
use queen_engine::kv;
use queen_engine::rights::{GrantedOn, Privilege};

use super::args;
use super::call::Call;
use super::signatures::{SIGNATURES, VIEWS};
use crate::broker::rights::{self, GrantRequest};
use crate::error::{Error, Result};
use crate::store::grants::Callables;

extension_sql_file!("../../sql/rights.sql", name = "rights", requires = ["tables"]);

/// Grant `role` a privilege on `queue`, which need not exist, or on all queues, also later ones
/// (NULL): `push` (push, schedule, publish), `pop` (pop, settle, extend, wait, register groups,
/// read payloads), `manage` (configure, purge, delete, seek, replay and the like) or `monitor`
/// (views without payloads, metrics). Members of the role have it as well. Also grants EXECUTE on
/// the functions and SELECT on the views that the privilege needs. Returns false if it was granted
/// before.
///
/// Errors: 42501 unless the caller is the owner of the extension, a member of that role or a
/// superuser; 42704 if there is no such role; 22023.
///
/// Transaction: takes effect when the caller commits, also in transactions that are open then.
/// Waits for a transaction that is granting or revoking.
#[pg_extern]
fn queen_grant(
    call: Call,
    role: Option<&str>,
    privilege: Option<&str>,
    queue: default!(Option<&str>, "NULL"),
) -> bool {
    call.answer(|| {
        let request = on_queue(role, privilege, queue)?;
        call.write(|| request.grant("queen_grant"))
    })
}

/// Take a privilege on `queue` from `role`; with NULL, that on all queues and those on single ones.
/// Also takes the right to call what no other privilege of the role needs. Returns false if it was
/// not granted so.
///
/// Errors: as `queen_grant`.
///
/// Transaction: as `queen_grant`.
#[pg_extern]
fn queen_revoke(
    call: Call,
    role: Option<&str>,
    privilege: Option<&str>,
    queue: default!(Option<&str>, "NULL"),
) -> bool {
    call.answer(|| {
        let request = match privilege {
            // What a restore has granted to the role that owned the extension before.
            Some(OWNER) if queue.is_none() => request(role, Privilege::Owner, None)?,
            _ => on_queue(role, privilege, queue)?,
        };
        call.write(|| request.revoke("queen_revoke"))
    })
}

const OWNER: &str = Privilege::Owner.name();

/// Grant `role` a privilege on the namespace `ns` of markers, or on all of them, also later ones
/// (NULL): `read`, or `write` (put, delete, increment, check; a write that is not applied tells the
/// marker's value). Otherwise as `queen_grant`.
#[pg_extern]
fn queen_grant_kv(
    call: Call,
    role: Option<&str>,
    privilege: Option<&str>,
    ns: default!(Option<&str>, "NULL"),
) -> bool {
    call.answer(|| {
        let request = on_namespace(role, privilege, ns)?;
        call.write(|| request.grant("queen_grant_kv"))
    })
}

/// Take a privilege on the namespace `ns` from `role`; with NULL, that on all namespaces and those
/// on single ones. Otherwise as `queen_revoke`.
#[pg_extern]
fn queen_revoke_kv(
    call: Call,
    role: Option<&str>,
    privilege: Option<&str>,
    ns: default!(Option<&str>, "NULL"),
) -> bool {
    call.answer(|| {
        let request = on_namespace(role, privilege, ns)?;
        call.write(|| request.revoke("queen_revoke_kv"))
    })
}

fn on_queue<'a>(
    role: Option<&'a str>,
    privilege: Option<&str>,
    queue: Option<&'a str>,
) -> Result<GrantRequest<'a>> {
    let privilege = checked_privilege(privilege, GrantedOn::Queue)?;
    let queue = queue.map(|name| args::name("queue", Some(name))).transpose()?;
    request(role, privilege, queue)
}

fn on_namespace<'a>(
    role: Option<&'a str>,
    privilege: Option<&str>,
    ns: Option<&'a str>,
) -> Result<GrantRequest<'a>> {
    let privilege = checked_privilege(privilege, GrantedOn::Namespace)?;
    ns.map(kv::check_ns).transpose()?;
    request(role, privilege, ns)
}

fn request<'a>(
    role: Option<&'a str>,
    privilege: Privilege,
    on: Option<&'a str>,
) -> Result<GrantRequest<'a>> {
    let role = args::name("role", role)?;
    Ok(GrantRequest { role, privilege, on, needed_by })
}

/// A privilege on what the function is about, by its name.
fn checked_privilege(name: Option<&str>, on: GrantedOn) -> Result<Privilege> {
    let name = args::required("privilege", name)?;
    Privilege::named(name).filter(|privilege| privilege.on() == on).ok_or_else(|| {
        Error::invalid(
            format!("unknown privilege \"{}\"", args::quoted(name)),
            "The value is not one of those accepted.",
            match on {
                GrantedOn::Namespace => "Use 'read' or 'write'.",
                _ => "Use 'push', 'pop', 'manage' or 'monitor'.",
            },
        )
    })
}

/// The functions and views that a privilege needs.
fn needed_by(privilege: Privilege) -> Callables {
    let functions = SIGNATURES.iter().filter(|one| one.needs.contains(&privilege));
    let views = VIEWS.iter().filter(|(_, needs)| needs.contains(&privilege));
    Callables {
        functions: functions.map(|one| one.name).collect(),
        views: views.map(|(name, _)| *name).collect(),
    }
}

/// A function that lives beside the tables: the views call it.
#[pg_schema]
pub mod queen_mq {
    use super::*;

    /// Whether the calling role has the privilege on `queue`, or on all queues (NULL): the views
    /// show their readers what they may see.
    #[pg_extern(stable, requires = ["tables"])]
    fn sees(call: Call, queue: Option<&str>, privilege: Option<&str>) -> bool {
        call.answer(|| {
            let privilege = Privilege::named(args::required("privilege", privilege)?);
            let Some(privilege) = privilege else { return Ok(false) };
            call.read(|| rights::sees(privilege, queue))
        })
    }
}
