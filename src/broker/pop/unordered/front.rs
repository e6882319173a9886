//! How far a session has come in a partition of a group without order, as it remembers that between
//! its pops: the *front*.
//!
//! All messages behind the front are claimed, but for those that it has waiting. A front is a cache
//! of one session: each of its facts is true of the database, and without it a scan begins at the
//! stored cursor. A scan takes the front out, moves it on, and keeps it again. No lock.

use std::collections::HashMap;

use queen_engine::cursor::Cursor;
use queen_engine::message::{MessageId, Span, Spans};

use crate::pg::clock::Moment;
use crate::pg::session_cache::SessionCache;
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::group::Group;
use crate::store::located::Located;
use crate::store::seen_snapshot::WritingTransaction;
use crate::store::segment::Log;

/// Partitions whose front a session remembers.
const REMEMBERED: usize = 1024;
/// A front with more runs of messages waiting than this is forgotten.
const MOST_WAITING: usize = 256;

thread_local! {
    /// By group, registration and partition.
    static FRONTS: SessionCache<(i64, Moment, String), KeptFront> = SessionCache::of(REMEMBERED);
}

fn key(group: &Group, partition: &str) -> (i64, Moment, String) {
    (group.id, group.registered_at, partition.to_owned())
}

/// The front of a partition during a scan.
pub struct Front {
    /// The partition's cursor, moved on by scans and not stored.
    pub cursor: Cursor,
    /// Messages behind it that this transaction has claimed.
    pub own: Vec<MessageId>,
    base: Option<BaseCursor>,
}

/// The stored cursor that a front was moved on from.
#[derive(Clone, Copy)]
struct BaseCursor {
    id: u64,
    revision: i64,
    /// Written by this transaction, which may be rolled back.
    is_own: bool,
}

/// A front between two pops.
struct KeptFront {
    cursor: Cursor,
    /// The id and the revision of the stored cursor; without the revision if a transaction that
    /// may be rolled back wrote it.
    base: Option<(u64, Option<i64>)>,
    /// Messages that a transaction of this session has claimed. When it has ended they are scanned
    /// once more: it may have been rolled back.
    own: Option<(WritingTransaction, Vec<MessageId>)>,
    /// For this many more pops it is enough to look beyond all claims.
    ahead_for: u32,
}

/// Where many consumers pop from one partition, each finds messages beyond all claims. Once in this
/// many times that a session does, it scans what is behind them as well.
const SCAN_EVERY: u32 = 16;

/// Where to look for the last claim of a partition.
pub struct Ahead {
    pub from: MessageId,
    /// As in the stored cursor.
    pub since: Option<Moment>,
    /// The id of the stored cursor. With another one, other messages of the log may be for the
    /// group.
    pub cursor_id: u64,
}

/// Whether it is enough this time to look beyond all claims, and where.
pub fn ahead(group: &Group, partition: &str) -> Option<Ahead> {
    let count_down = |kept: &mut KeptFront| {
        let (cursor_id, _) = kept.base?;
        kept.ahead_for = kept.ahead_for.checked_sub(1)?;
        let from = MessageId::new(kept.cursor.position + 1, 0);
        Some(Ahead { from, since: kept.cursor.since, cursor_id })
    };
    FRONTS.with(|fronts| fronts.change(&key(group, partition), count_down)).flatten()
}

impl Front {
    /// Take the front out of the session's memory: the one that is remembered, or the stored
    /// cursor if there is none or the stored cursor is further.
    pub fn of(
        group: &Group,
        log: &Log<'_>,
        stored: Option<&Located>,
        under: &ActiveSnapshot,
    ) -> Self {
        let base =
            stored.map(|at| BaseCursor { id: at.id, revision: at.revision, is_own: at.is_own });
        let kept = FRONTS.with(|fronts| fronts.take(&key(group, log.partition)));
        let position = stored.map_or(group.start.position, |stored| stored.cursor.position);
        let kept = kept.filter(|kept| {
            kept.base.map(|(id, _)| id) == base.map(|base| base.id)
                && kept.cursor.position >= position
        });
        let Some(KeptFront { mut cursor, base: from, own, .. }) = kept else {
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
        // The sweep, or another session, may have moved the stored cursor on.
        if let Some(stored) = stored
            && from.and_then(|(_, revision)| revision) != Some(stored.revision)
        {
            forget_settled(&mut cursor.waiting, &stored.cursor, log, under);
        }
        Self { cursor, own, base }
    }

    /// The id of the stored cursor, if there is one.
    pub fn cursor_id(&self) -> Option<u64> {
        self.base.map(|base| base.id)
    }

    /// Remember the front. `left`: messages behind it that a later scan must meet again.
    /// `was_ahead`: the pop got messages beyond all claims, and no others.
    pub fn keep(self, group: &Group, partition: &str, left: Vec<MessageId>, was_ahead: bool) {
        let Self { mut cursor, own, base } = self;
        cursor.waiting = in_order(left, &cursor.waiting);
        let own = match (own.is_empty(), WritingTransaction::current()) {
            (true, _) => None,
            (false, Some(writer)) => Some((writer, own)),
            // A subtransaction that has written nothing does not tell whether those around it are
            // kept.
            (false, None) => return,
        };
        if cursor.waiting.iter().count() <= MOST_WAITING {
            let base = base.map(|base| (base.id, (!base.is_own).then_some(base.revision)));
            let ahead_for = if was_ahead { SCAN_EVERY } else { 0 };
            let kept = KeptFront { cursor, base, own, ahead_for };
            let own = kept.own.as_ref().map_or(0, |(_, own)| own.len() * size_of::<MessageId>());
            let waiting = kept.cursor.waiting.iter().size_hint().0 * size_of::<Span>();
            FRONTS.with(|fronts| fronts.keep_heavy(key(group, partition), kept, own + waiting));
        }
    }
}

/// Drop from a front's waiting messages those that are settled by now: once their claims have been
/// folded, the stored cursor alone knows.
fn forget_settled(waiting: &mut Spans, stored: &Cursor, log: &Log<'_>, under: &ActiveSnapshot) {
    let segments: HashMap<u64, u64> =
        log.segments(waiting, under).into_iter().map(|found| (found.id(), found.xid())).collect();
    let (left, _) = waiting.partition(|message| {
        let xid = segments.get(&message.segment());
        stored.waiting.find(message).is_some()
            || xid.is_some_and(|xid| !stored.has_read(message.segment(), *xid))
    });
    *waiting = left;
}

/// Messages and others, in the order of the log.
fn in_order(messages: Vec<MessageId>, others: &Spans) -> Spans {
    let mut all: Vec<Span> = messages.into_iter().map(Span::of).chain(others.iter()).collect();
    all.sort_unstable_by_key(|span| (span.segment, span.first));
    all.into_iter().collect()
}
