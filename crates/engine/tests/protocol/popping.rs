//! A pop: it looks, without a lock, and writes if nothing has changed since.

use queen_engine::cursor::{Cursor, Readiness};
use queen_engine::message::{MessageId, Span};
use queen_engine::pop::{Popped, Read};

use super::Protocol;
use super::bounds::Trouble;
use super::database::{Grant, Row};
use super::events::Event;
use super::log::{PushingTransaction, Stage};
use super::promise::Promise;
use super::rules::Wish;
use super::state::{Holding, Look, NOW, State, TICK, Worker};

impl Protocol {
    /// The looks that may be worth it now.
    pub fn looks(&self, state: &State) -> Vec<Look> {
        let mut looks = Vec::new();
        for partition in 0..self.bounds.partitions {
            match self.bounds.ordered {
                true => looks.extend(self.bounds.batches.iter().filter_map(|wanted| {
                    let look = self.look(state, partition, *wanted, None);
                    self.popped(state, &look).is_some().then_some(look)
                })),
                false => looks.extend(self.looks_without_order(state, partition)),
            }
        }
        // A pop that wants more and would get no more is another one's twin.
        looks.dedup_by(|more, fewer| {
            let taken = |look: &Look| self.popped(state, look).map(|popped| popped.cursor);
            self.bounds.ordered && more.partition == fewer.partition && taken(more) == taken(fewer)
        });
        looks
    }

    /// Look for the first message that is free, and for those that have come back.
    fn looks_without_order(&self, state: &State, partition: u8) -> Vec<Look> {
        let stored = state.database.partition(partition);
        let returned = stored.claims.iter().map(|(message, _)| *message);
        let visible = state.log.visible_in(partition, state.log.committed());
        let messages = visible.into_iter().flat_map(PushingTransaction::messages);
        let free = messages.into_iter().find(|message| {
            let is_claimed = stored.claim(*message).is_some();
            (self.rules.may_claim)(is_claimed, state.is_settled(partition, *message))
        });
        let all = returned.chain(free).map(|message| self.look(state, partition, 1, Some(message)));
        let mut looks: Vec<Look> = all.filter(|look| self.popped(state, look).is_some()).collect();
        looks.dedup();
        looks
    }

    fn look(&self, state: &State, partition: u8, wanted: usize, claim: Option<MessageId>) -> Look {
        let stored = state.database.partition(partition);
        let row = match claim {
            None => Some(&stored.cursor),
            Some(message) => stored.claim(message),
        };
        let is_free = claim.is_some_and(|message| {
            (self.rules.may_claim)(row.is_some(), state.is_settled(partition, message))
        });
        Look {
            partition,
            wanted,
            claim,
            seen: row.filter(|_| !is_free).cloned(),
            generation: stored.generation,
            snapshot: state.log.snapshot(),
            began: NOW,
            is_outdated: false,
        }
    }

    /// What the pop comes to that has looked so; None: there is nothing to write.
    fn popped(&self, state: &State, look: &Look) -> Option<Popped> {
        let stored = state.database.partition(look.partition);
        let Some(row) = &look.seen else {
            return look.claim.map(|message| self.claimed(state, look, message));
        };
        let cursor = row.cursor();
        // It is asked when the pop looks. What it says then holds until the state changes.
        let looks_now = look.began == NOW;
        if looks_now && (self.rules.readiness)(&cursor, NOW) != Readiness::Now {
            return None;
        }
        let number = stored.number(look.partition, look.claim);
        let snapshot = (self.rules.snapshot)(&look.snapshot, &state.log.snapshot());
        let wish = Wish {
            snapshot: &snapshot,
            wanted: look.wanted,
            max_deliveries: self.bounds.max_deliveries,
            lease: (state.free_lease(number), TICK),
            now: look.began,
        };
        match look.claim {
            Some(_) => (self.rules.pop_claim)(cursor, &wish),
            None => (self.rules.pop)(cursor, &wish, &|read: &Read, limit| {
                state.log.read(look.partition, look.snapshot.visible, read, limit)
            }),
        }
    }

    /// The first delivery of a message in a group without order.
    fn claimed(&self, state: &State, look: &Look, message: MessageId) -> Popped {
        let number = state.database.partition(look.partition).number(look.partition, look.claim);
        let lease = state.free_lease(number);
        let taken = [Span::of(message)].into_iter().collect();
        let (ended, exhausted) = Default::default();
        Popped {
            cursor: (self.rules.claimed)(message, look.began, (lease, TICK)),
            taken: queen_engine::message::Spans::delivered(taken),
            ended,
            exhausted,
            superseded: 0,
        }
    }

    /// The pop that has looked so writes, or finds that it must not.
    pub fn write(&self, state: &mut State, worker: usize, look: &Look) {
        state.workers[worker] = Worker::Idle;
        if !self.may_write(state, look) {
            self.events.note(Event::PopTooLate);
            return;
        }
        let Some(popped) = self.popped(state, look) else { return };
        if state.may(&self.bounds, Trouble::Crash) {
            state.unflushed.push(state.database.clone());
        }
        self.deliver(state, look, &popped);
        if !popped.ended.is_empty() {
            self.events.note(Event::ExpiredByPop);
        }
        if popped.cursor.drain.is_some() {
            self.events.note(Event::Drained);
        }
        let is_buried = !popped.exhausted.is_empty();
        let stored = state.database.partition_mut(look.partition);
        match (look.claim, &look.seen) {
            (Some(message), None) => {
                stored.claims.push((message, Row::new(&popped.cursor)));
                stored.claims.sort_by_key(|(message, _)| *message);
            }
            _ => stored.row_mut(look.claim).expect("is there").write(&popped.cursor),
        }
        let lease = popped.cursor.leases.last().map(|lease| lease.id);
        state.database.keep_receipts(popped.ended, self.rules.receipt);
        if is_buried {
            state.flush();
        }
        if let Some(lease) = lease.filter(|_| !popped.taken.is_empty()) {
            let open: Vec<MessageId> = popped.taken.messages().collect();
            let (partition, claim) = (look.partition, look.claim);
            let deadline = look.began + TICK;
            state.database.grants.push(Grant {
                lease,
                partition,
                messages: open.clone(),
                deadline,
            });
            let holding = Holding { lease, partition, claim, open };
            state.workers[worker] = Worker::Holding(holding);
        }
    }

    fn may_write(&self, state: &State, look: &Look) -> bool {
        let stored = state.database.partition(look.partition);
        let row = match look.claim {
            None => Some(&stored.cursor),
            Some(message) => stored.claim(message),
        };
        stored.generation == look.generation
            && match (&look.seen, look.claim, row) {
                (Some(_), _, Some(_)) => (self.rules.may_write)(state.is_current(look)),
                (None, Some(message), row) => {
                    let is_settled = state.is_settled(look.partition, message);
                    (self.rules.may_claim)(row.is_some(), is_settled)
                }
                _ => false,
            }
    }

    /// Enter a delivery into the ledger, and judge it.
    fn deliver(&self, state: &mut State, look: &Look, popped: &Popped) {
        for dead in &popped.exhausted {
            let allowed = self.bounds.max_deliveries;
            let fact = state.database.fact(dead.message);
            let is_due = allowed.is_some_and(|most| fact.deliveries >= most);
            state.demand(Promise::Budget, is_due && dead.deliveries == fact.deliveries);
            state.database.change_fact(dead.message, |fact| fact.is_settled = true);
            self.events.note(Event::DeliveredTooOften);
        }
        let taken: Vec<MessageId> = popped.taken.messages().collect();
        for (place, message) in taken.iter().enumerate() {
            let attempt = popped.taken.find(*message).map_or(0, |span| span.deliveries);
            self.judge_delivery(state, look, *message, attempt, &popped.cursor);
            if self.bounds.ordered {
                self.judge_order(state, *message, &taken[..place]);
            }
        }
        for message in taken {
            state.database.change_fact(message, |fact| fact.deliveries += 1);
        }
    }

    fn judge_delivery(
        &self,
        state: &mut State,
        look: &Look,
        message: MessageId,
        attempt: u32,
        cursor: &Cursor,
    ) {
        let fact = state.database.fact(message);
        let is_held = state.database.grants.iter().any(|grant| {
            let is_it = match self.bounds.ordered {
                true => grant.partition == look.partition,
                false => grant.messages.contains(&message),
            };
            is_it && grant.deadline > NOW
        });
        let push = state.log.committed_with(message);
        let is_phantom = push.is_none_or(|push| push.partition != look.partition);
        if fact.deliveries > 0 {
            self.events.note(Event::Redelivered);
        }
        state.demand(Promise::OneHolder, !is_held);
        state.demand(Promise::NoPhantom, !is_phantom);
        state.demand(Promise::SettledStays, !fact.is_settled);
        state.demand(Promise::Attempt, attempt == fact.deliveries + 1);
        // Of a delay that is over, the ledger does not know when it ended.
        let knows = look.began == NOW;
        state.demand(Promise::Delay, !knows || look.began >= fact.not_before);
        state.demand(Promise::Count, cursor.failures.of(message) == fact.failures);
        let most = self.bounds.max_deliveries;
        state.demand(Promise::Budget, most.is_none_or(|most| attempt <= most));
    }

    /// What had committed before the push of a delivered message began is settled, or comes earlier
    /// in this delivery. The messages of one push come in their order.
    fn judge_order(&self, state: &mut State, message: MessageId, before: &[MessageId]) {
        let Some(push) = state.log.committed_with(message).cloned() else { return };
        let comes_first =
            |other: &MessageId| state.database.fact(*other).is_settled || before.contains(other);
        let in_push = push.messages().take_while(|other| *other < message);
        let mut is_kept = in_push.into_iter().all(|other| comes_first(&other));
        for (at, other) in state.log.pushes.iter().enumerate() {
            let is_earlier = push.after >> at & 1 == 1
                && other.stage == Stage::Committed
                && other.partition == push.partition;
            if is_earlier && !other.messages().all(|other| comes_first(&other)) {
                is_kept = false;
            }
            if other.stage == Stage::Committed
                && other.segment > push.segment
                && other.partition == push.partition
                && other.messages().any(|other| state.database.fact(other).is_settled)
            {
                self.events.note(Event::LateCommit);
            }
        }
        state.demand(Promise::Order, is_kept);
    }
}
