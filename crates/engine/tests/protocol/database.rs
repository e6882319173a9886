//! What the database stores of the group, and beside it the *ledger*: what the model itself
//! remembers of deliveries and settlements, by which it judges.

use queen_engine::cursor::Cursor;
use queen_engine::lease::LeaseId;
use queen_engine::message::MessageId;
use queen_engine::receipt::{EndedLease, Receipt};
use queen_engine::{codec, cursor};

use super::state::NOW;

/// The newest state of a cursor or a claim, as bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Row(Vec<u8>);

impl Row {
    pub fn new(cursor: &Cursor) -> Self {
        Self(in_short(cursor.clone()).to_bytes())
    }

    pub fn cursor(&self) -> Cursor {
        Cursor::from_bytes(&self.0).expect("a state reads back")
    }

    pub fn write(&mut self, cursor: &Cursor) {
        *self = Self::new(cursor);
    }

    /// Time goes on.
    fn age(&mut self, by: i64) {
        let mut cursor = self.cursor();
        cursor.retry_at = cursor.retry_at.map(|at| at - by);
        cursor.leases.iter_mut().for_each(|lease| lease.deadline -= by);
        self.write(&cursor);
    }
}

/// A cursor without what no rule reads: when messages were popped, and how long ago something has
/// ended. States that differ in nothing else are one.
fn in_short(mut cursor: Cursor) -> Cursor {
    cursor.last_pop_at = 0;
    cursor.retry_at = cursor.retry_at.filter(|at| *at > NOW);
    for lease in &mut cursor.leases {
        (lease.given_at, lease.duration) = (0, 0);
        lease.deadline = lease.deadline.max(NOW);
    }
    cursor
}

/// What the database has of the group in one partition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupInPartition {
    /// How often a seek has replaced the cursor of a group without order.
    pub generation: u8,
    pub cursor: Row,
    /// In a group without order: the claims, by message.
    pub claims: Vec<(MessageId, Row)>,
}

impl GroupInPartition {
    pub fn new(start: cursor::Start) -> Self {
        Self { generation: 0, cursor: Row::new(&Cursor::new(start)), claims: Vec::new() }
    }

    /// The cursor and the claims.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.claims.iter().map(|(_, row)| row).chain([&self.cursor])
    }

    pub fn claim(&self, message: MessageId) -> Option<&Row> {
        self.claims.iter().find(|(of, _)| *of == message).map(|(_, row)| row)
    }

    /// The cursor, or the claim of a message.
    pub fn row_mut(&mut self, claim: Option<MessageId>) -> Option<&mut Row> {
        match claim {
            None => Some(&mut self.cursor),
            Some(message) => {
                self.claims.iter_mut().find(|(of, _)| *of == message).map(|(_, row)| row)
            }
        }
    }

    /// The number in the ids of leases: each cursor and each claim has its own.
    pub fn number(&self, partition: u8, claim: Option<MessageId>) -> u64 {
        let claim = claim.map_or(0, |message| message.to_sql() as u64 + 1);
        claim * 100 + u64::from(partition) * 10 + u64::from(self.generation)
    }
}

/// What the ledger knows of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fact {
    pub deliveries: u32,
    pub failures: u32,
    pub is_settled: bool,
    /// It has failed, and is not to come before this moment.
    pub not_before: i64,
}

/// What a lease holds by the ledger.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Grant {
    pub lease: LeaseId,
    pub partition: u8,
    pub messages: Vec<MessageId>,
    pub deadline: i64,
}

/// All that a crash of the server may take, or keep.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Database {
    pub partitions: Vec<GroupInPartition>,
    receipts: Vec<(LeaseId, Vec<u8>)>,
    /// By message; those that were never delivered are missing.
    pub facts: Vec<(MessageId, Fact)>,
    /// Of leases that are live by the ledger.
    pub grants: Vec<Grant>,
}

impl Database {
    pub fn new(partitions: u8) -> Self {
        let one = |_| GroupInPartition::new(cursor::Start::default());
        let partitions = (0..partitions).map(one).collect();
        Self { partitions, receipts: Vec::new(), facts: Vec::new(), grants: Vec::new() }
    }

    pub fn partition(&self, at: u8) -> &GroupInPartition {
        &self.partitions[usize::from(at)]
    }

    pub fn partition_mut(&mut self, at: u8) -> &mut GroupInPartition {
        &mut self.partitions[usize::from(at)]
    }

    pub fn keep_receipts(&mut self, ended: Vec<EndedLease>, kept: fn(Receipt) -> Option<Receipt>) {
        for (lease, receipt) in ended {
            let Some(receipt) = kept(receipt) else { continue };
            // The deadline is there to be told, and decides nothing.
            let receipt = Receipt { deadline: 0, ..receipt };
            self.receipts.push((lease, codec::encode(&receipt)));
        }
        self.receipts.sort_unstable();
    }

    pub fn receipt(&self, lease: LeaseId) -> Option<Receipt> {
        let (_, stored) = self.receipts.iter().find(|(of, _)| *of == lease)?;
        Some(codec::decode(stored).expect("a receipt reads back"))
    }

    /// Forget the receipts that nothing will ask for: they change nothing.
    pub fn forget_receipts(&mut self, is_wanted: impl Fn(LeaseId) -> bool) {
        self.receipts.retain(|(lease, _)| is_wanted(*lease));
    }

    /// All leases that are known.
    pub fn leases(&self) -> impl Iterator<Item = LeaseId> + '_ {
        let rows = self.partitions.iter().flat_map(GroupInPartition::rows);
        let held = rows.flat_map(|row| row.cursor().leases).map(|lease| lease.id);
        held.chain(self.grants.iter().map(|grant| grant.lease))
    }

    /// Time goes on.
    pub fn age(&mut self, by: i64) {
        for partition in &mut self.partitions {
            partition.cursor.age(by);
            partition.claims.iter_mut().for_each(|(_, row)| row.age(by));
        }
        self.grants.iter_mut().for_each(|grant| grant.deadline -= by);
        self.facts.iter_mut().for_each(|(_, fact)| fact.not_before -= by);
        self.tidy();
    }

    /// Forget what is over, and count no further what is settled.
    pub fn tidy(&mut self) {
        self.grants.retain(|grant| grant.deadline > NOW);
        self.grants.sort_unstable();
        for (_, fact) in &mut self.facts {
            fact.not_before = fact.not_before.max(NOW);
            if fact.is_settled {
                *fact = Fact { is_settled: true, ..Fact::default() };
            }
        }
    }

    pub fn fact(&self, message: MessageId) -> Fact {
        let known = self.facts.iter().find(|(of, _)| *of == message);
        known.map_or(Fact::default(), |(_, fact)| *fact)
    }

    pub fn change_fact(&mut self, message: MessageId, change: impl FnOnce(&mut Fact)) {
        let at = match self.facts.binary_search_by_key(&message, |(of, _)| *of) {
            Ok(at) => at,
            Err(at) => {
                self.facts.insert(at, (message, Fact::default()));
                at
            }
        };
        change(&mut self.facts[at].1);
    }

    pub fn grant(&self, lease: LeaseId) -> Option<&Grant> {
        self.grants.iter().find(|grant| grant.lease == lease)
    }

    /// Take settled messages from what the lease holds.
    pub fn take_from_grant(&mut self, lease: LeaseId, messages: &[MessageId]) {
        for grant in self.grants.iter_mut().filter(|grant| grant.lease == lease) {
            grant.messages.retain(|held| !messages.contains(held));
        }
        self.grants.retain(|grant| !grant.messages.is_empty());
    }

    pub fn end_grant(&mut self, lease: LeaseId) {
        self.grants.retain(|grant| grant.lease != lease);
    }

    /// How many messages the group counts as settled.
    pub fn settled(&self) -> i64 {
        let rows = self.partitions.iter().flat_map(GroupInPartition::rows);
        rows.map(|row| row.cursor().settled).sum()
    }
}
