//! The model as stateright explores it: which steps a state has, and what each leads to.
//!
//! **Each run ends.** Each step makes [`State::measure`] larger, which is a promise as
//! well, so no run comes to a state twice. A run ends in a state without a step. There every
//! message that has committed must be settled: so every run that goes on settles everything at
//! last. The bounds never stop a run earlier: they bound what goes wrong, and time goes on where
//! there is nothing else to do. (The `eventually` properties of stateright would not do: where two
//! runs come to one state, it looks at the first of them alone.)

use stateright::Property;

use super::Protocol;
use super::bounds::Trouble;
use super::database::GroupInPartition;
use super::events::Event;
use super::log::Stage;
use super::promise::Promise;
use super::state::{Call, Holding, Look, NOW, State, TICK, Verdict, Worker};

#[derive(Clone, Debug, PartialEq)]
pub enum Deed {
    Begin,
    Push { at: usize, partition: u8 },
    Commit { at: usize },
    Abort { at: usize },
    Look(Look),
    Write { worker: usize },
    Settle { worker: usize, call: Call, reply_is_lost: bool },
    Repeat { worker: usize },
    Extend { worker: usize },
    Forget { worker: usize },
    Sweep { partition: u8 },
    Fold { partition: u8 },
    Seek { partition: u8, to_end: bool },
    Crash { kept: usize },
    Tick,
}

impl Protocol {
    fn producers_may(&self, state: &State, actions: &mut Vec<Deed>) {
        if state.log.pushes.len() < self.bounds.pushes.len() {
            actions.push(Deed::Begin);
        }
        // Partitions have no names: the first push is to the first one.
        let is_first = state.log.pushes.iter().all(|push| push.stage == Stage::Begun);
        for (at, push) in state.log.pushes.iter().enumerate() {
            match push.stage {
                Stage::Begun => {
                    let partitions = if is_first { 1 } else { self.bounds.partitions };
                    actions.extend((0..partitions).map(|partition| Deed::Push { at, partition }));
                }
                Stage::Pushed => {
                    actions.push(Deed::Commit { at });
                    if state.may(&self.bounds, Trouble::Abort) {
                        actions.push(Deed::Abort { at });
                    }
                }
                Stage::Committed | Stage::Aborted => (),
            }
        }
    }

    fn workers_may(&self, state: &State, actions: &mut Vec<Deed>) {
        for (at, worker) in state.workers.iter().enumerate() {
            // What one worker may do, its twin may do.
            if at > 0 && state.workers[at - 1] == *worker {
                continue;
            }
            match worker {
                Worker::Idle => actions.extend(self.looks(state).into_iter().map(Deed::Look)),
                Worker::Looking(_) => actions.push(Deed::Write { worker: at }),
                Worker::Repeating(..) => actions.push(Deed::Repeat { worker: at }),
                Worker::Holding(holding) => self.holder_may(state, at, holding, actions),
            }
        }
    }

    fn holder_may(&self, state: &State, worker: usize, holding: &Holding, actions: &mut Vec<Deed>) {
        let may = |trouble| state.may(&self.bounds, trouble);
        let mut calls = vec![Call::rest()];
        if let [first, .., last] = holding.open[..] {
            calls.extend([first, last].map(|message| Call::of(message, Verdict::Completed)));
        }
        for verdict in [Verdict::Failed, Verdict::Retry, Verdict::Dead] {
            if verdict.trouble().is_some_and(may) {
                calls.extend(holding.open.first().map(|first| Call::of(*first, verdict)));
            }
        }
        for call in calls {
            if may(Trouble::LostReply) && !call.is_rest {
                let call = call.clone();
                actions.push(Deed::Settle { worker, call, reply_is_lost: true });
            }
            actions.push(Deed::Settle { worker, call, reply_is_lost: false });
        }
        if may(Trouble::LostReply) && holding.open.len() == 1 {
            let call = Call::of(holding.open[0], Verdict::Completed);
            actions.push(Deed::Settle { worker, call, reply_is_lost: true });
        }
        if may(Trouble::Extend) {
            actions.push(Deed::Extend { worker });
        }
        if may(Trouble::Forget) {
            actions.push(Deed::Forget { worker });
        }
    }

    fn others_may(&self, state: &State, actions: &mut Vec<Deed>) {
        for partition in 0..self.bounds.partitions {
            if self.has_expired(state, partition) {
                actions.push(Deed::Sweep { partition });
            }
            if !self.bounds.ordered && self.fold(&mut state.clone(), partition) {
                actions.push(Deed::Fold { partition });
            }
            if state.log.committed_in(partition).next().is_none() {
                continue;
            }
            for (trouble, to_end) in [(Trouble::SeekStart, false), (Trouble::SeekEnd, true)] {
                if state.may(&self.bounds, trouble) {
                    actions.push(Deed::Seek { partition, to_end });
                }
            }
        }
        if state.may(&self.bounds, Trouble::Crash) {
            actions.extend((0..=state.unflushed.len()).map(|kept| Deed::Crash { kept }));
        }
    }

    /// Whether time changes anything: a lease or a delay is to end.
    fn time_matters(&self, state: &State) -> bool {
        let rows = state.database.partitions.iter().flat_map(GroupInPartition::rows);
        let mut due = rows.filter_map(|row| row.cursor().due_at());
        due.any(|due| due > NOW)
    }

    fn take(&self, state: &mut State, action: Deed) {
        match action {
            Deed::Begin => {
                let messages = self.bounds.pushes[state.log.pushes.len()];
                state.log.begin(messages, self.rules.xid_first);
            }
            Deed::Push { at, partition } => state.log.push(at, partition),
            Deed::Commit { at } => {
                state.log.end(at, Stage::Committed);
                state.flush();
            }
            Deed::Abort { at } => {
                state.troubles_left -= 1;
                state.log.end(at, Stage::Aborted);
            }
            Deed::Look(look) => {
                let idle = state.workers.iter().position(|worker| *worker == Worker::Idle);
                let worker = idle.expect("a worker is idle");
                match self.bounds.two_steps {
                    true => state.workers[worker] = Worker::Looking(look),
                    false => self.write(state, worker, &look),
                }
            }
            Deed::Write { worker } => {
                let Worker::Looking(look) = state.workers[worker].clone() else { return };
                self.write(state, worker, &look);
            }
            Deed::Settle { worker, call, reply_is_lost } => {
                let troubles = u8::from(call.verdict.trouble().is_some() || reply_is_lost);
                state.troubles_left -= troubles;
                self.settle(state, worker, &call, reply_is_lost);
            }
            Deed::Repeat { worker } => self.repeat(state, worker),
            Deed::Extend { worker } => {
                state.troubles_left -= 1;
                self.extend(state, worker);
            }
            Deed::Forget { worker } => {
                state.troubles_left -= 1;
                state.workers[worker] = Worker::Idle;
            }
            Deed::Sweep { partition } => self.sweep(state, partition),
            Deed::Fold { partition } => drop(self.fold(state, partition)),
            Deed::Seek { partition, to_end } => {
                state.troubles_left -= 1;
                self.seek(state, partition, to_end);
            }
            Deed::Crash { kept } => {
                state.troubles_left -= 1;
                self.crash(state, kept);
            }
            Deed::Tick => {
                state.expiries_left = state.expiries_left.saturating_sub(1);
                state.age(TICK);
            }
        }
    }

    /// Each message that has committed is unread, or waits, or is held, or is settled.
    fn judge_whole(&self, state: &mut State) {
        for push in state.log.pushes.clone() {
            if push.stage != Stage::Committed {
                continue;
            }
            for message in push.messages() {
                let stored = state.database.partition(push.partition);
                let is_kept = match stored.claim(message) {
                    Some(claim) => {
                        let claim = claim.cursor();
                        let is_held = claim.leases.iter().any(|l| l.held.find(message).is_some());
                        is_held || claim.waiting.find(message).is_some()
                    }
                    None => {
                        let cursor = stored.cursor.cursor();
                        let is_held = cursor.leases.iter().any(|l| l.held.find(message).is_some());
                        is_held
                            || cursor.waiting.find(message).is_some()
                            || !cursor.has_read(push.segment, push.xid)
                    }
                };
                let is_settled = state.database.fact(message).is_settled;
                state.demand(Promise::NotLost, is_kept || is_settled);
            }
        }
    }

    /// Whether a run ends here.
    fn is_over(&self, state: &State) -> bool {
        let pushes = &state.log.pushes;
        if pushes.len() < self.bounds.pushes.len()
            || pushes.iter().any(|push| push.stage < Stage::Committed)
            || state.workers.iter().any(|worker| *worker != Worker::Idle)
        {
            return false;
        }
        let mut next = Vec::new();
        stateright::Model::actions(self, state, &mut next);
        next.is_empty()
    }

    /// At the end of a run.
    fn judge_end(&self, state: &mut State) {
        let committed = state.log.pushes.iter().filter(|push| push.stage == Stage::Committed);
        let messages: Vec<_> = committed.flat_map(|push| push.messages()).collect();
        let is_settled = messages.iter().all(|one| state.database.fact(*one).is_settled);
        state.demand(Promise::SettledAtLast, is_settled);
        // What a seek skips or brings back is counted by the extension.
        let seeks = [Trouble::SeekStart, Trouble::SeekEnd];
        if !seeks.iter().any(|seek| self.bounds.kinds.contains(seek)) {
            let settled = state.database.settled();
            state.demand(Promise::Count, settled == messages.len() as i64);
        }
        self.events.note(Event::RunEnded);
    }
}

/// Whether a promise holds in a state.
type Holds = fn(&Protocol, &State) -> bool;

impl stateright::Model for Protocol {
    type State = State;
    type Action = Deed;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(&self.bounds)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Deed>) {
        if state.broken.is_some() {
            return;
        }
        self.producers_may(state, actions);
        let has_begun = state.log.pushes.iter().any(|push| push.stage == Stage::Begun);
        if has_begun && !self.bounds.early_xids {
            actions.retain(|deed| matches!(deed, Deed::Push { .. }));
            return;
        }
        self.workers_may(state, actions);
        self.others_may(state, actions);
        if (state.expiries_left > 0 || actions.is_empty()) && self.time_matters(state) {
            actions.push(Deed::Tick);
        }
    }

    fn next_state(&self, before: &State, action: Deed) -> Option<State> {
        let mut state = before.clone();
        self.take(&mut state, action);
        self.judge_whole(&mut state);
        state.tidy(&self.bounds);
        state.measure = state.measured(self.bounds.ordered);
        let comes_nearer = state.measure > before.measure;
        state.demand(Promise::RunsEnd, comes_nearer);
        if self.is_over(&state) {
            self.judge_end(&mut state);
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let all: [(Promise, Holds); 16] = [
            (Promise::OneHolder, |_, state| state.keeps(Promise::OneHolder)),
            (Promise::NotLost, |_, state| state.keeps(Promise::NotLost)),
            (Promise::NoPhantom, |_, state| state.keeps(Promise::NoPhantom)),
            (Promise::SettledStays, |_, state| state.keeps(Promise::SettledStays)),
            (Promise::Fence, |_, state| state.keeps(Promise::Fence)),
            (Promise::HolderIsHeard, |_, state| state.keeps(Promise::HolderIsHeard)),
            (Promise::Repetition, |_, state| state.keeps(Promise::Repetition)),
            (Promise::Order, |_, state| state.keeps(Promise::Order)),
            (Promise::Attempt, |_, state| state.keeps(Promise::Attempt)),
            (Promise::Budget, |_, state| state.keeps(Promise::Budget)),
            (Promise::Delay, |_, state| state.keeps(Promise::Delay)),
            (Promise::Deadline, |_, state| state.keeps(Promise::Deadline)),
            (Promise::Durable, |_, state| state.keeps(Promise::Durable)),
            (Promise::Count, |_, state| state.keeps(Promise::Count)),
            (Promise::RunsEnd, |_, state| state.keeps(Promise::RunsEnd)),
            (Promise::SettledAtLast, |_, state| state.keeps(Promise::SettledAtLast)),
        ];
        all.map(|(promise, holds)| Property::always(promise.name(), holds)).into()
    }
}
