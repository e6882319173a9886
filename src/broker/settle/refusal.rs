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
            .detail("No such lease was ever given in this database, or its trace is gone.")
            .hint(
                "Use the lease_id that queen_pop returned. Traces of ended leases are kept for an \
                 hour.",
            ),
        Refusal::NotInLease { message: Some(message) } => {
            not_in_lease(lease, &format!("message {message}"))
        }
        Refusal::NotInLease { message: None } => {
            Error::new(Code::MessageNotInLease, format!("lease {lease} holds nothing any more"))
                .detail("Everything it held has been settled or given back.")
                .hint("There is nothing to extend.")
        }
        Refusal::AlreadySettled { message } => Error::new(
            Code::AlreadySettled,
            format!("message {message} was settled otherwise under lease {lease}"),
        )
        .detail("What a lease has said of a message stands.")
        .hint("Only the same statement can be repeated."),
    }
}

/// QN001.
fn expired(lease: LeaseId, deadline: Moment, deliveries: u32, now: Moment) -> Error {
    const HINT: &str = "Roll back: the messages will be delivered again. Take longer leases, or \
                        extend them with queen_extend while working.";
    let late = (now - deadline).max(0) as f64 / 1e6;
    let deadline = clock::show(deadline);
    Error::new(Code::LeaseExpired, format!("lease {lease} has expired"))
        .detail(format!(
            "It expired at {deadline}, {late:.3} seconds ago; this was delivery attempt \
             {deliveries}."
        ))
        .hint(HINT)
}

/// QN002. `holder`: the deadline and the delivery attempt of the lease that holds the messages now.
fn superseded(lease: LeaseId, holder: Option<(Moment, u32)>) -> Error {
    const HELD: &str = "Roll back: somebody else has these messages. Take longer leases, or \
                        extend them with queen_extend while working.";
    const LOST: &str = "Roll back: the messages are not this lease's any more. A seek, a purge or \
                        an unsubscription takes them away, too.";
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
            .detail("The messages have been settled under another lease, or taken away.")
            .hint(LOST),
    }
}

/// QN004: `what`, a message or a partition, is not part of the lease.
pub fn not_in_lease(lease: LeaseId, what: &str) -> Error {
    Error::new(Code::MessageNotInLease, format!("{what} is not part of lease {lease}"))
        .detail("The lease was never given it, or has given it back.")
        .hint("Settle a message with the lease_id that came with its delivery.")
}

/// 22023: items name a message, or everything, with different statuses.
pub fn settled_in_two_ways(what: &str) -> Error {
    Error::invalid(
        format!("{what} is settled in two ways at once"),
        "Two statements of this call name it with different statuses.",
        "Say once what became of each message.",
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
