//! All tables and indexes of the extension that the code reads by name: what the layer over
//! PostgreSQL has to know of them.

use super::{
    admission, binding, claim, cursor, dead_letter, discovery, grants, group, identity, lease_set,
    marker, progress, queue, receipt, replay, segment, sweep, tally, timer, waterline,
};
use crate::pg::catalogue::Extension;
use crate::pg::table::Table;

/// All tables, that of queues first: its owner is the role as which the extension's code runs.
pub static TABLES: [&Table; 22] = [
    &queue::QUEUES,
    &segment::SEGMENTS,
    &admission::ADMISSIONS,
    &group::GROUPS,
    &cursor::CURSORS,
    &claim::CLAIMS,
    &progress::PROGRESS,
    &discovery::DISCOVERIES,
    &tally::TALLIES,
    &waterline::WATERLINES,
    &receipt::RECEIPTS,
    &timer::TIMERS,
    &binding::BINDINGS,
    &grants::GRANTS,
    &identity::INSTALLATIONS,
    &marker::MARKERS,
    &lease_set::LEASE_SETS,
    &dead_letter::DEAD_LETTERS,
    &replay::REPLAYS,
    &identity::IDENTITIES,
    &sweep::OWNERS,
    &sweep::SWEEPS,
];

/// What a crash may take: the tables that a pop writes to give a lease. What a pop finds out on its
/// way is in them as well: how far the group is, how far it has looked, and how the leases before
/// have ended.
pub static LEASES: [&Table; 6] = [
    &cursor::CURSORS,
    &claim::CLAIMS,
    &progress::PROGRESS,
    &discovery::DISCOVERIES,
    &receipt::RECEIPTS,
    &lease_set::LEASE_SETS,
];

pub static EXTENSION: Extension =
    Extension { schema: c"queen_mq", tables: &TABLES, announces: &identity::IDENTITIES };
