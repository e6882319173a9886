//! Where a look begins that only tidies up, at an end of an index where rows die.
//!
//! The worker looks there again and again. While a transaction holds an old snapshot, each look
//! walks over all that has died. So after a long walk the worker remembers up to where it has been,
//! and its next looks begin there. What a transaction commits late below that place is found by a
//! whole look, which follows a minute later. No call of a user depends on when. If the clock is set
//! back, what is remembered counts for nothing.

use crate::pg::clock::{Moment, SECOND};
use crate::pg::usage;

/// A walk that takes more buffers than this is a long one.
const LONG: i64 = 128;
/// After a long walk, the next whole look comes after so much time, in microseconds, or after so
/// many times the time that it took.
const WHOLE_AFTER: i64 = 60 * SECOND;
const REST: i64 = 200;

/// What is remembered of the last long walk. Begins with none.
#[derive(Clone, Copy, Debug)]
pub struct LongWalk<P> {
    upto: Option<P>,
    /// When the last look began.
    looked_at: Moment,
    whole_at: Moment,
    /// There was a look before. The first one of a session reads the catalogue, too.
    is_warm: bool,
}

impl<P> Default for LongWalk<P> {
    fn default() -> Self {
        Self { upto: None, looked_at: Moment::MIN, whole_at: Moment::MIN, is_warm: false }
    }
}

/// A look that goes on.
pub struct LookFrom<P> {
    /// None: a whole look.
    pub from: Option<P>,
    began_at: Moment,
    /// Buffers that the walk has taken.
    buffers: i64,
}

impl<P: Copy> LongWalk<P> {
    pub fn begin(&self, now: Moment) -> LookFrom<P> {
        let from = self.upto.filter(|_| (self.looked_at..self.whole_at).contains(&now));
        LookFrom { from, began_at: now, buffers: 0 }
    }

    /// The look has come to `upto`. Returns until when there is nothing to look for below it, as
    /// far as is known: a look that was not whole may have left something.
    pub fn end(&mut self, look: &LookFrom<P>, upto: P, now: Moment) -> Moment {
        let is_long = look.buffers > LONG && self.is_warm;
        (self.is_warm, self.looked_at) = (true, look.began_at);
        match look.from {
            None if !is_long => self.upto = None,
            None => {
                let rest = WHOLE_AFTER.max((now - look.began_at).saturating_mul(REST));
                (self.upto, self.whole_at) = (Some(upto), now.saturating_add(rest));
            }
            Some(_) if is_long => self.upto = Some(upto),
            Some(_) => (),
        }
        look.from.map_or(Moment::MAX, |_| self.whole_at)
    }
}

impl<P> LookFrom<P> {
    /// Walk on; what it takes is counted.
    pub fn walk<T>(&mut self, walk: impl FnOnce() -> T) -> T {
        let before = usage::buffers();
        let found = walk();
        self.buffers += usage::buffers() - before;
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A look at this moment that has taken so many buffers; returns where it began.
    fn look(known: &mut LongWalk<i64>, now: Moment, buffers: i64) -> Option<i64> {
        let LookFrom { from, began_at, .. } = known.begin(now);
        known.end(&LookFrom { from, began_at, buffers }, now, now);
        from
    }

    #[test]
    fn after_a_long_walk_looks_begin_at_its_end_for_a_minute() {
        let mut known = LongWalk::default();
        assert_eq!(look(&mut known, 0, 1000), None);
        assert_eq!(look(&mut known, SECOND, 1000), None);
        assert_eq!(look(&mut known, 2 * SECOND, 5), Some(SECOND));
        assert_eq!(look(&mut known, 60 * SECOND, 5), Some(SECOND));
        assert_eq!(look(&mut known, 61 * SECOND, 5), None);
        assert_eq!(look(&mut known, 62 * SECOND, 5), None);
    }

    #[test]
    fn a_clock_that_was_set_back_makes_the_next_look_whole() {
        let mut known = LongWalk::default();
        let day = 86_400 * SECOND;
        look(&mut known, day, 1000);
        look(&mut known, day + 1, 1000);
        assert_eq!(look(&mut known, 1, 5), None);
        assert_eq!(look(&mut known, 2, 5), None);
    }
}
