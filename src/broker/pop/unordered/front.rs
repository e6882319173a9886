//! How far the messages of a partition have been taken, in a group without order, as a session
//! remembers it between its pops.

use std::collections::HashMap;

use queen_engine::cursor::Cursor;
use queen_engine::message::{MessageId, Span, Spans};

use crate::pg::clock::Moment;
use crate::pg::session_cache::SessionCache;
use crate::pg::spi::ActiveSnapshot;
use crate::store::cursor::Located;
use crate::store::group::Group;
use crate::store::seen_snapshot::WritingTransaction;
use crate::store::segment::Log;

/// Partitions whose front a session remembers, and runs of messages that one may leave behind.
const REMEMBERED: usize = 1024;
const LEFT_BEHIND: usize = 256;

/// A cursor of the partition, moved on by looking: behind it all is claimed, but for what it has
/// waiting.
pub struct Front {
    pub cursor: Cursor,
    /// Behind it, and claimed by this transaction.
    pub own: Vec<MessageId>,
    /// The stored cursor, if there is one, that it was moved on from.
    base: Option<Base>,
}

#[derive(Clone, Copy)]
struct Base {
    id: u64,
    revision: i64,
    /// Written by this transaction, which may be rolled back.
    is_own: bool,
}

struct Kept {
    cursor: Cursor,
    base: Option<(u64, Option<i64>)>,
    /// What a transaction of this session has claimed: to be looked at once more when that has ended.
    own: Option<(WritingTransaction, Vec<MessageId>)>,
    /// For so many pops yet it is enough to look beyond what anybody has taken.
    ahead_for: u32,
}

/// Where many take from one partition, each finds something beyond what anybody has taken; once in so
/// many times that a session does, it looks at what is behind as well.
const LOOK_BACK_EVERY: u32 = 16;

/// Where to begin to look for the last that anybody has taken.
pub struct Ahead {
    pub from: MessageId,
    /// As of the stored cursor.
    pub since: Option<Moment>,
    /// The id of the stored cursor: with another, another part of the log may be for the group.
    pub base: u64,
}

/// Whether that is enough this time.
pub fn ahead(group: &Group, partition: &str) -> Option<Ahead> {
    let count_down = |kept: &mut Kept| {
        let (base, _) = kept.base?;
        kept.ahead_for = kept.ahead_for.checked_sub(1)?;
        let from = MessageId::new(kept.cursor.position + 1, 0);
        Some(Ahead { from, since: kept.cursor.since, base })
    };
    FRONTS.with(|fronts| fronts.change(&key(group, partition), count_down)).flatten()
}

thread_local! {
    /// By group, registration and partition. What is in it is true of the database whether or not
    /// anybody remembers it.
    static FRONTS: SessionCache<(i64, Moment, String), Kept> = SessionCache::of(REMEMBERED);
}

fn key(group: &Group, partition: &str) -> (i64, Moment, String) {
    (group.id, group.registered_at, partition.to_owned())
}

impl Front {
    /// Where to look on from: the stored cursor, or what is remembered if that is further.
    pub fn of(
        group: &Group,
        log: &Log<'_>,
        stored: Option<&Located>,
        under: &ActiveSnapshot,
    ) -> Self {
        let base = stored.map(|at| Base { id: at.id, revision: at.revision, is_own: at.is_own });
        let kept = FRONTS.with(|fronts| fronts.take(&key(group, log.partition)));
        let position = stored.map_or(group.start.position, |stored| stored.cursor.position);
        let kept = kept.filter(|kept| {
            kept.base.map(|(id, _)| id) == base.map(|base| base.id)
                && kept.cursor.position >= position
        });
        let Some(Kept { mut cursor, base: from, own, .. }) = kept else {
            return Self { cursor: group.state_in(stored), own: Vec::new(), base };
        };
        let own = match own {
            Some((writer, own)) if writer.is_open() => own,
            Some((_, own)) => {
                cursor.waiting = in_order(own, &cursor.waiting);
                Vec::new()
            }
            None => Vec::new(),
        };
        // The stored cursor may have been moved on.
        if let Some(stored) = stored
            && from.and_then(|(_, revision)| revision) != Some(stored.revision)
        {
            forget(&mut cursor.waiting, &stored.cursor, log, under);
        }
        Self { cursor, own, base }
    }

    /// The id of the stored cursor.
    pub fn base(&self) -> Option<u64> {
        self.base.map(|base| base.id)
    }

    /// Remember it, with what of it was not taken. `was_ahead`: something was found beyond what anybody
    /// has taken, and only there.
    pub fn keep(self, group: &Group, partition: &str, left: Vec<MessageId>, was_ahead: bool) {
        let Self { mut cursor, own, base } = self;
        cursor.waiting = in_order(left, &cursor.waiting);
        let own = match (own.is_empty(), WritingTransaction::current()) {
            (true, _) => None,
            (false, Some(writer)) => Some((writer, own)),
            // A subtransaction that has written nothing does not tell whether the ones around it
            // stand.
            (false, None) => return,
        };
        if cursor.waiting.iter().count() <= LEFT_BEHIND {
            let base = base.map(|base| (base.id, (!base.is_own).then_some(base.revision)));
            let ahead_for = if was_ahead { LOOK_BACK_EVERY } else { 0 };
            let kept = Kept { cursor, base, own, ahead_for };
            let own = kept.own.as_ref().map_or(0, |(_, own)| own.len() * size_of::<MessageId>());
            let waiting = kept.cursor.waiting.iter().size_hint().0 * size_of::<Span>();
            FRONTS.with(|fronts| fronts.keep_heavy(key(group, partition), kept, own + waiting));
        }
    }
}

/// Of what a front has left behind, what is settled may be known to the stored cursor alone by now.
fn forget(waiting: &mut Spans, stored: &Cursor, log: &Log<'_>, under: &ActiveSnapshot) {
    let segments: HashMap<u64, u64> =
        log.segments(waiting, under).into_iter().map(|found| (found.id(), found.xid())).collect();
    let (left, _) = waiting.partition(|message| {
        let xid = segments.get(&message.segment());
        stored.waiting.find(message).is_some()
            || xid.is_some_and(|xid| !stored.has_read(message.segment(), *xid))
    });
    *waiting = left;
}

/// All of these, in the order of the log.
fn in_order(messages: Vec<MessageId>, others: &Spans) -> Spans {
    let mut all: Vec<Span> = messages.into_iter().map(Span::of).chain(others.iter()).collect();
    all.sort_unstable_by_key(|span| (span.segment, span.first));
    all.into_iter().collect()
}
