//! Which messages are old enough to be deleted.

use crate::pg::clock::Moment;
use crate::store::queue::Queue;

/// The options of a queue that say how long messages stay, at one moment.
pub struct Ages<'a> {
    pub queue: &'a Queue,
    pub now: Moment,
}

impl Ages<'_> {
    /// Old enough to go, settled or not.
    pub fn is_over(&self, created_at: Moment) -> bool {
        self.queue.options.retention().is_some_and(|age| created_at <= self.now - age)
    }

    /// Old enough to go if every group has settled it.
    pub fn is_over_if_settled(&self, created_at: Moment) -> bool {
        created_at <= self.now - self.queue.options.completed_retention()
    }

    pub fn is_due(&self, created_at: Moment) -> bool {
        self.is_over(created_at) || self.is_over_if_settled(created_at)
    }

    /// From when on [`Self::is_over`] says yes.
    pub fn over_at(&self, created_at: Moment) -> Moment {
        self.queue.options.retention().map_or(Moment::MAX, |age| created_at.saturating_add(age))
    }

    /// From when on [`Self::is_due`] says yes.
    pub fn due_at(&self, created_at: Moment) -> Moment {
        let settled = created_at.saturating_add(self.queue.options.completed_retention());
        settled.min(self.over_at(created_at))
    }
}
