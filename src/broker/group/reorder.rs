//! Changing whether groups are read in order: each partition by one consumer at a time, or message
//! by message.
//!
//! `queen_configure` calls [`reorder`] when a queue gets another ordering. It holds the queue's
//! row, and here the queue alone, with those of its groups that change, their cursors and their
//! claims. So no pop gets a message of them meanwhile. `queen_configure_group` calls
//! [`reorder_one`] with a group that it holds alone.

use std::collections::BTreeMap;

use crate::broker::group::revoke::{locate, renumber, retire, write_state};
use crate::broker::group::unordered_partition::UnorderedPartition;
use crate::broker::hold::attempts::hold_in_attempts;
use crate::broker::hold::{delete_discovery, hold_cursors, hold_queue_and_groups};
use crate::broker::housekeeping::fold_claims;
use crate::error::{Code, Error, Result};
use crate::pg::clock;
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::claim;
use crate::store::cursor;
use crate::store::cursor_or_claim::LockedCursor;
use crate::store::group::{Group, QUEUE_MODE};
use crate::store::located::Located;
use crate::store::queue::{Options, Queue};

/// Give the queue's new ordering to groups that have none of their own. `before`: the options that
/// the queue had. Error 55000 while a lease of one of the groups is live.
pub fn reorder(queue: &Queue, before: &Options) -> Result<()> {
    let held = hold_in_attempts(&queue.name, |attempt| {
        let groups = hold_queue_and_groups(attempt, queue)?;
        let changes = |group: &Group| group.is_ordered(&queue.options) != group.is_ordered(before);
        let hold = |group: Group| {
            delete_discovery(attempt, &group)?;
            let locked = hold_cursors(attempt, &[group.id])?;
            Ok((group, locked))
        };
        groups.into_iter().filter(changes).map(hold).collect::<Result<Vec<_>>>()
    })?;
    held.into_iter().try_for_each(|(group, locked)| reorder_one(queue, &group, locked))
}

/// Make an ordered group one without order, or the other way round. What is not settled stays
/// unsettled, with what is known of its deliveries and failures. The group gets a new id and new
/// cursors, so that a pop that has looked at the old ones goes on from none of them.
pub fn reorder_one(queue: &Queue, group: &Group, locked: Vec<LockedCursor>) -> Result<()> {
    let mut located = locate(group, locked)?;
    let now = clock::now();
    let void_before = queue.identity.void_before;
    if located.iter().any(|located| located.cursor.live_lease(now, void_before).is_some()) {
        return Err(leases_are_live(queue, group));
    }
    retire(queue, &located);
    for located in &mut located {
        located.cursor.reclaim(now, void_before);
    }
    let mut partitions: BTreeMap<String, Vec<Located>> = BTreeMap::new();
    for located in located {
        partitions.entry(located.partition.clone()).or_default().push(located);
    }
    ActiveSnapshot::new_snapshot(|under| {
        let mut states = Vec::with_capacity(partitions.len());
        for (partition, located) in partitions {
            let UnorderedPartition { base, claims } = UnorderedPartition::of(group, located);
            let state = match group.is_ordered(&queue.options) {
                true => {
                    let state = |claim: Located| Some((claim.message?, claim.cursor));
                    let claims = claims.into_iter().filter_map(state);
                    let base = fold_claims::past_all_claims(queue, group, &partition, base, under)?;
                    (base.with_claims(claims), Vec::new())
                }
                false => base.into_claims(),
            };
            states.push((partition, state));
        }
        let id = renumber(queue, group);
        for (partition, (base, claims)) in states {
            let new = cursor::replace(id, &partition)?;
            write_state(queue, &new, (base, Vec::new()));
            for (message, state) in claims {
                let claim = Located::claim(claim::draw_id(), id, &partition, message);
                claim::try_insert(claim.id, id, &partition, message, now, None);
                write_state(queue, &claim, (state, Vec::new()));
            }
        }
        Ok(())
    })
}

fn leases_are_live(queue: &Queue, group: &Group) -> Error {
    let what =
        format!("ordering of queue \"{}\" can't be changed while leases are live", queue.name);
    let consumer = match group.name.as_str() {
        QUEUE_MODE => "A consumer in queue mode".to_owned(),
        name => format!("A consumer of group \"{name}\""),
    };
    Error::new(Code::ObjectNotInPrerequisiteState, what)
        .detail(format!("{consumer} holds a live lease."))
        .hint("Stop the consumers, and try again when queen_leases shows none.")
}
