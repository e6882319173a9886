//! How far the worker has looked through a table that is swept page by page.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::pg::clock::Moment;
use crate::pg::shared::plain;

/// Where the look of this process has come to.
pub struct Position {
    page: AtomicI64,
    /// The soonest moment that dooms a row before that page.
    soonest: AtomicI64,
}

/// A [`Position`] that one worker hands on to the next.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    pub page: i64,
    soonest: Moment,
}

plain!(Pass { page, soonest });

impl Pass {
    pub const FIRST: Self = Self { page: 0, soonest: Moment::MAX };
}

impl Position {
    pub const fn first() -> Self {
        Self { page: AtomicI64::new(0), soonest: AtomicI64::new(Moment::MAX) }
    }

    pub fn get(&self) -> Pass {
        let (page, soonest) = (&self.page, &self.soonest);
        Pass { page: page.load(Ordering::Relaxed), soonest: soonest.load(Ordering::Relaxed) }
    }

    pub fn set(&self, pass: Pass) {
        self.page.store(pass.page, Ordering::Relaxed);
        self.soonest.store(pass.soonest, Ordering::Relaxed);
    }

    /// Note the soonest moment that dooms a row of the pages that were looked at; returns that of
    /// all pages so far.
    pub fn lower(&self, soonest: Moment) -> Moment {
        self.soonest.fetch_min(soonest, Ordering::Relaxed).min(soonest)
    }

    /// Go on at this page of so many, or at the start again. Whether the pass has come to its end.
    pub fn go_to(&self, next: i64, pages: i64) -> bool {
        let is_last = next >= pages;
        self.page.store(if is_last { 0 } else { next }, Ordering::Relaxed);
        if is_last {
            self.soonest.store(Moment::MAX, Ordering::Relaxed);
        }
        is_last
    }
}
