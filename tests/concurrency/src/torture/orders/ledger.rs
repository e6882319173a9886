//! What the clients were told.

use std::collections::BTreeMap;

/// The part of the log in which the commit of something acknowledged lies, and on which server.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// How many promotions there were before.
    pub epoch: usize,
    /// How far the log was written before the COMMIT was sent, and after it was answered.
    pub before: i64,
    pub after: i64,
}

/// Whether what was committed on one server is on the one that was promoted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    Kept,
    Lost,
    /// Its commit was being written where the logs part.
    Unknown,
}

/// An order, or a charge, whose COMMIT was answered.
#[derive(Clone, Debug)]
pub struct Entry {
    pub order: String,
    /// Of a charge: which of those that may have been tried for the order.
    pub receipt: i64,
    pub span: Span,
}

#[derive(Default)]
pub struct Ledger {
    pub queued: Vec<Entry>,
    pub charged: Vec<Entry>,
    /// How often each event happened.
    pub stats: BTreeMap<&'static str, u64>,
    /// Promises that were broken.
    pub violations: Vec<String>,
    /// Where the log of each promoted server leaves that of the one before.
    pub forks: Vec<i64>,
}

impl Ledger {
    /// What became of it by the promotions after it.
    pub fn fate(&self, span: Span) -> Fate {
        let later = self.forks.iter().skip(span.epoch);
        let mut fate = Fate::Kept;
        for fork in later {
            if span.before >= *fork {
                return Fate::Lost;
            }
            if span.after > *fork {
                fate = Fate::Unknown;
            }
        }
        fate
    }

    pub fn of_fate(&self, entries: &[Entry], fate: Fate) -> (Vec<String>, Vec<i64>) {
        let chosen = entries.iter().filter(|entry| self.fate(entry.span) == fate);
        chosen.map(|entry| (entry.order.clone(), entry.receipt)).unzip()
    }
}

#[cfg(test)]
mod tests {
    use super::{Fate, Ledger, Span};

    #[test]
    fn what_is_before_each_fork_is_kept() {
        let ledger = Ledger { forks: vec![100, 300], ..Ledger::default() };
        let fate = |epoch, before, after| ledger.fate(Span { epoch, before, after });
        assert_eq!(fate(0, 50, 100), Fate::Kept);
        assert_eq!(fate(0, 90, 101), Fate::Unknown);
        assert_eq!(fate(0, 100, 101), Fate::Lost);
        assert_eq!(fate(1, 100, 300), Fate::Kept);
        assert_eq!(fate(1, 250, 350), Fate::Unknown);
        assert_eq!(fate(1, 300, 310), Fate::Lost);
        assert_eq!(fate(2, 500, 510), Fate::Kept);
    }
}
