//! What happens to a group besides its workers: the sweep, seeks, and crashes of the server.

use queen_engine::cursor::{Cursor, Start};
use queen_engine::message::{MessageId, Span, Spans};
use queen_engine::pop::Pop;

use super::Protocol;
use super::database::{GroupInPartition, Row};
use super::events::Event;
use super::promise::Promise;
use super::rules::described;
use super::state::{NOW, State, Worker};

impl Protocol {
    /// Whether the sweep would find a lease that has expired.
    pub fn has_expired(&self, state: &State, partition: u8) -> bool {
        let mut rows = state.database.partition(partition).rows();
        rows.any(|row| !(self.rules.reclaim)(&mut row.cursor(), NOW).is_empty())
    }

    /// The sweep ends the leases that have expired.
    pub fn sweep(&self, state: &mut State, partition: u8) {
        let reclaim = self.rules.reclaim;
        let stored = state.database.partition_mut(partition);
        let mut ended = Vec::new();
        let claims = stored.claims.iter_mut().map(|(_, row)| row);
        for row in claims.chain([&mut stored.cursor]) {
            let mut cursor = row.cursor();
            let over = reclaim(&mut cursor, NOW);
            if !over.is_empty() {
                row.write(&cursor);
                ended.extend(over);
            }
        }
        self.events.note(Event::ExpiredBySweep);
        state.database.keep_receipts(ended, self.rules.receipt);
        state.flush();
    }

    /// The sweep folds claims into the cursor of their partition. Returns whether it did anything.
    pub fn fold(&self, state: &mut State, partition: u8) -> bool {
        let stored = state.database.partition(partition);
        let before = stored.cursor.cursor();
        let mut after = self.moved_on(state, partition, &before);
        let is_over = |(message, row): &&(MessageId, Row)| {
            let push = state.log.committed_with(*message);
            let is_behind = push.is_none_or(|push| after.has_read(push.segment, push.xid))
                && after.waiting.find(*message).is_none();
            is_behind && (self.rules.may_remove)(&row.cursor())
        };
        let (over, left): (Vec<_>, Vec<_>) = stored.claims.iter().partition(is_over);
        if (after.position, &after.waiting) == (before.position, &before.waiting) && over.is_empty()
        {
            return false;
        }
        let left: Vec<_> = left.into_iter().cloned().collect();
        after.settled += over.iter().map(|(_, row)| row.cursor().settled).sum::<i64>();
        let stored = state.database.partition_mut(partition);
        stored.claims = left;
        stored.cursor.write(&after);
        state.flush();
        self.events.note(Event::Folded);
        true
    }

    /// The cursor, moved on over what is claimed. What is behind it without a claim waits there.
    fn moved_on(&self, state: &State, partition: u8, cursor: &Cursor) -> Cursor {
        let stored = state.database.partition(partition);
        let last = stored.claims.last().map_or(0, |(message, _)| message.segment());
        let last = last.max(cursor.position);
        let seen = state.log.snapshot();
        let snapshot = described(&seen);
        let mut pop = Pop::begin(cursor.clone(), &snapshot, usize::from(u16::MAX), None);
        while let Some(read) = pop.next_read() {
            let all = state.log.read(partition, seen.visible, &read, usize::MAX);
            let found: Vec<_> = all.iter().take_while(|one| one.segment <= last).copied().collect();
            let is_end = found.len() < all.len();
            pop.supply(&read, &found, !is_end);
            if is_end {
                pop.stop();
            }
        }
        let Some(popped) = pop.finish(None, cursor.last_pop_at) else { return cursor.clone() };
        let has_claim = |message: MessageId| stored.claim(message).is_some();
        let (_, left) = popped.taken.partition(|message| (self.rules.may_pass)(has_claim(message)));
        let left: Spans = left.iter().map(|span| Span { deliveries: 0, ..span }).collect();
        let mut moved = Cursor { settled: cursor.settled, ..popped.cursor };
        moved.waiting.prepend(left);
        moved
    }

    /// The administrator moves the group, in one partition, to the start or to the end.
    pub fn seek(&self, state: &mut State, partition: u8, to_end: bool) {
        let seen = state.log.snapshot();
        let start = match to_end {
            true => Start::after(state.log.next_segment - 1, &described(&seen)),
            false => Start::default(),
        };
        let seek = self.rules.seek;
        let stored = state.database.partition_mut(partition);
        let ended = match self.bounds.ordered {
            true => {
                let (moved, ended) = seek(&stored.cursor.cursor(), start);
                stored.cursor.write(&moved);
                ended
            }
            false => {
                let of_claim =
                    |(_, row): &(MessageId, Row)| seek(&row.cursor(), Start::default()).1;
                let ended = stored.claims.iter().flat_map(of_claim).collect();
                let generation = stored.generation + 1;
                *stored = GroupInPartition { generation, ..GroupInPartition::new(start) };
                ended
            }
        };
        let skipped: Vec<MessageId> = match to_end {
            true => {
                let shown = state.log.visible_in(partition, seen.visible);
                shown.into_iter().flat_map(|push| push.messages()).collect()
            }
            false => Vec::new(),
        };
        let of_others = |message: MessageId| {
            let push = state.log.committed_with(message);
            push.is_some_and(|push| push.partition != partition)
        };
        state.database.facts.retain(|(message, _)| of_others(*message));
        for message in skipped {
            state.database.change_fact(message, |fact| fact.is_settled = true);
        }
        state.database.grants.retain(|grant| grant.partition != partition);
        state.database.keep_receipts(ended, self.rules.receipt);
        state.flush();
    }

    /// The server crashes. Of the commits that nothing has waited for, the first `kept` stay.
    pub fn crash(&self, state: &mut State, kept: usize) {
        let before = state.database.clone();
        if let Some(database) = state.unflushed.get(kept) {
            state.database = database.clone();
            self.events.note(Event::LeaseTaken);
        }
        state.unflushed.clear();
        state.log.crash();
        for worker in &mut state.workers {
            if matches!(worker, Worker::Looking(_)) {
                *worker = Worker::Idle;
            }
        }
        let is_settled = |message: MessageId| state.database.fact(message).is_settled;
        let is_kept =
            before.facts.iter().all(|(message, fact)| !fact.is_settled || is_settled(*message));
        state.demand(Promise::Durable, is_kept);
    }
}
