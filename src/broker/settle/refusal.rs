//! Why a settlement is refused, in the user's words: what the engine refuses, and what the items
//! name wrongly.

use queen_engine::lease::LeaseId;
use queen_engine::settle::Refusal;

use crate::error::{Code, Error};
use crate::pg::clock::{self, Moment};

/// Why `lease` can't settle or extend what was asked, at the moment `now`.
pub fn explain(lease: LeaseId, refusal: &Refusal, now: Moment) -> Error {
    match refusal {
        Refusal::Expired { deadline, deliveries } => expired(lease, *deadline, *deliveries, now),
        Refusal::Superseded { holder } => superseded(lease, *holder),
        Refusal::Unknown => Error::new(Code::LeaseUnknown, format!("lease {lease} is not known"))
            .detail(
                "No such lease was ever given in this database, or it ended more than an hour \
                 ago, or its queue was deleted.",
            )
            .hint("Use the lease_id that queen_pop returned."),
        Refusal::NotInLease { message: Some(message) } => {
            not_in_lease(lease, &format!("message {message}"))
        }
        Refusal::NotInLease { message: None } => {
            Error::new(Code::MessageNotInLease, format!("lease {lease} holds nothing any more"))
                .detail("Everything it held has been settled or given back.")
                .hint("Pop again to get messages.")
        }
        Refusal::AlreadySettled { message } => Error::new(
            Code::AlreadySettled,
            format!("message {message} was completed under lease {lease}"),
        )
        .detail("It cannot fail, be retried or become a dead letter any more.")
        .hint("The first settlement stands. To repeat a call, use the status of the first one."),
    }
}

/// QN001.
fn expired(lease: LeaseId, deadline: Moment, deliveries: u32, now: Moment) -> Error {
    const HINT: &str = "Roll back: the messages will be delivered again. Take longer leases, or \
                        extend them with queen_extend while working.";
    let when = match deadline <= now {
        true => {
            let late = (now - deadline) as f64 / 1e6;
            format!("It expired at {}, {late:.3} seconds ago", clock::show(deadline))
        }
        false => "It ended when the database was restored from a dump".to_owned(),
    };
    Error::new(Code::LeaseExpired, format!("lease {lease} has expired"))
        .detail(format!("{when}; this was delivery attempt {deliveries}."))
        .hint(HINT)
}

/// QN002. `holder`: the deadline and the delivery attempt of the lease that holds the messages now.
fn superseded(lease: LeaseId, holder: Option<(Moment, u32)>) -> Error {
    const HELD: &str = "Roll back: another consumer has these messages. Take longer leases, \
                        or extend them with queen_extend while working.";
    const LOST: &str = "Roll back, and drop the messages: this lease no longer has them.";
    let error = Error::new(Code::LeaseSuperseded, format!("lease {lease} has been superseded"));
    match holder {
        Some((deadline, deliveries)) => {
            let deadline = clock::show(deadline);
            error
                .detail(format!(
                    "The messages are held by another lease until {deadline}, delivery attempt \
                     {deliveries}."
                ))
                .hint(HELD)
        }
        None => error
            .detail(
                "Another lease has settled the messages since, or queen_seek, queen_purge, \
                 queen_unsubscribe or a change of ordering has taken them away.",
            )
            .hint(LOST),
    }
}

/// QN004: `what`, a message or a partition, is not part of the lease.
pub fn not_in_lease(lease: LeaseId, what: &str) -> Error {
    Error::new(Code::MessageNotInLease, format!("{what} is not part of lease {lease}"))
        .detail(
            "It was never delivered under this lease, or the lease has given it back, or has made \
             it a dead letter, with another status.",
        )
        .hint(
            "Settle a message with the lease_id that came with its delivery. To repeat a call, use \
             the status of the first one.",
        )
}

/// 22023: items name a message, or everything, with different statuses.
pub fn settled_in_two_ways(what: &str) -> Error {
    Error::invalid(
        format!("{what} is settled in two ways at once"),
        "Two elements of this call give it different statuses.",
        "Settle each message once.",
    )
}

/// 22023: a transaction_id that an item names without a partition is in two of them.
pub fn in_several_partitions(transaction_id: &str, one: &str, other: &str) -> Error {
    Error::invalid(
        format!("transaction_id \"{transaction_id}\" is in several partitions of the lease"),
        format!("Among them \"{one}\" and \"{other}\"."),
        "Name the partition as well.",
    )
}
