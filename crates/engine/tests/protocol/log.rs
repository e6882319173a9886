//! The log: transactions that push, and what a snapshot sees of them.

use queen_engine::message::MessageId;
use queen_engine::pop::{FoundSegment, Read};

/// How far a pushing transaction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// It has its xid.
    Begun,
    /// It has drawn the id of its segment and written it.
    Pushed,
    Committed,
    Aborted,
}

/// A transaction that pushes one segment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PushingTransaction {
    pub stage: Stage,
    pub xid: u64,
    pub segment: u64,
    pub messages: u16,
    pub partition: u8,
    /// Which transactions had committed when the push began, one bit for each.
    pub after: u8,
}

impl PushingTransaction {
    pub fn messages(&self) -> impl Iterator<Item = MessageId> + use<> {
        let segment = self.segment;
        (0..self.messages).map(move |index| MessageId::new(segment, index))
    }
}

/// A snapshot, as PostgreSQL tells it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seen {
    /// The transactions that it shows, one bit for each.
    pub visible: u8,
    pub running: Vec<u64>,
    pub xmax: u64,
    /// The next xid, read after the snapshot was taken.
    pub next: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Log {
    pub pushes: Vec<PushingTransaction>,
    /// One above the highest xid that has ended.
    pub xmax: u64,
    pub next_xid: u64,
    pub next_segment: u64,
}

impl Log {
    pub fn empty() -> Self {
        Self { pushes: Vec::new(), xmax: 1, next_xid: 1, next_segment: 1 }
    }

    fn draw_xid(&mut self) -> u64 {
        self.next_xid += 1;
        self.next_xid - 1
    }

    fn draw_segment(&mut self) -> u64 {
        self.next_segment += 1;
        self.next_segment - 1
    }

    /// The next transaction begins. The push rule: it gets its xid first, and later draws the id of
    /// its segment. Without the rule it is the other way round.
    pub fn begin(&mut self, messages: u16, xid_first: bool) {
        let (mut xid, mut segment) = (0, 0);
        match xid_first {
            true => xid = self.draw_xid(),
            false => segment = self.draw_segment(),
        }
        let (stage, partition, after) = (Stage::Begun, 0, 0);
        let push = PushingTransaction { stage, xid, segment, messages, partition, after };
        self.pushes.push(push);
    }

    /// The transaction pushes.
    pub fn push(&mut self, at: usize, partition: u8) {
        let after = self.committed();
        if self.pushes[at].xid == 0 {
            self.pushes[at].xid = self.draw_xid();
        } else {
            self.pushes[at].segment = self.draw_segment();
        }
        let push = &mut self.pushes[at];
        (push.stage, push.partition, push.after) = (Stage::Pushed, partition, after);
    }

    pub fn end(&mut self, at: usize, stage: Stage) {
        self.xmax = self.xmax.max(self.pushes[at].xid + 1);
        self.pushes[at].stage = stage;
    }

    /// The server has crashed. Transactions that ran are gone, with the ids that they had drawn.
    pub fn crash(&mut self) {
        for push in self.pushes.iter_mut().filter(|push| push.stage < Stage::Committed) {
            push.stage = Stage::Aborted;
        }
        let kept = self.pushes.iter().filter(|push| push.stage == Stage::Committed);
        self.next_segment = kept.map(|push| push.segment).max().unwrap_or(0) + 1;
        self.next_xid = self.xmax;
    }

    /// The committed transactions, one bit for each.
    pub fn committed(&self) -> u8 {
        let all = self.pushes.iter().enumerate();
        all.filter(|(_, push)| push.stage == Stage::Committed).map(|(at, _)| 1 << at).sum()
    }

    pub fn snapshot(&self) -> Seen {
        let runs = |push: &&PushingTransaction| push.stage < Stage::Committed && push.xid != 0;
        let running = self.pushes.iter().filter(runs).map(|push| push.xid);
        let running = running.filter(|xid| *xid < self.xmax).collect();
        Seen { visible: self.committed(), running, xmax: self.xmax, next: self.next_xid }
    }

    /// The committed transactions of a partition.
    pub fn committed_in(&self, partition: u8) -> impl Iterator<Item = &PushingTransaction> {
        let is_in = move |push: &&PushingTransaction| {
            push.stage == Stage::Committed && push.partition == partition
        };
        self.pushes.iter().filter(is_in)
    }

    /// The transactions of a partition that a snapshot shows, in the order of their segments.
    pub fn visible_in(&self, partition: u8, visible: u8) -> Vec<&PushingTransaction> {
        let shown = self
            .pushes
            .iter()
            .enumerate()
            .filter(|(at, push)| visible >> at & 1 == 1 && push.partition == partition);
        let mut shown: Vec<_> = shown.map(|(_, push)| push).collect();
        shown.sort_unstable_by_key(|push| push.segment);
        shown
    }

    /// The transaction whose segment has the message, if it has committed.
    pub fn committed_with(&self, message: MessageId) -> Option<&PushingTransaction> {
        let is_it = |push: &&PushingTransaction| {
            push.stage == Stage::Committed
                && push.segment == message.segment()
                && message.index() < push.messages
        };
        self.pushes.iter().find(is_it)
    }

    /// What a pop reads of a partition under a snapshot, at most `limit` segments.
    pub fn read(&self, partition: u8, visible: u8, read: &Read, limit: usize) -> Vec<FoundSegment> {
        let is_wanted = |push: &&PushingTransaction| match read {
            Read::Beyond { after } => push.segment > *after,
            Read::Late { from, after, upto } => {
                (after + 1..=*upto).contains(&push.segment) && from.contains(push.xid)
            }
        };
        let found = self.visible_in(partition, visible).into_iter().filter(is_wanted).take(limit);
        let found = found.map(|push| FoundSegment {
            segment: push.segment,
            messages: push.messages,
            skip: false,
            repeats: None,
        });
        found.collect()
    }
}
