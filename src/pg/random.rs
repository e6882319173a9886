//! Random numbers.

use std::cell::RefCell;

use pgrx::pg_sys;

use crate::error::{Code, Error};

thread_local! {
    /// Random numbers that have been fetched and not given out. A backend begins with none, because
    /// the postmaster, of which it is a copy, has fetched none.
    static DRAWN: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// 64 random bits from PostgreSQL's strong source. They are fetched 64 times 64 bits at once, since
/// each call of the source costs as much as the bits.
pub fn random() -> u64 {
    if let Some(one) = DRAWN.with_borrow_mut(Vec::pop) {
        return one;
    }
    let mut fresh = [0u64; 64];
    // SAFETY: the buffer is as long as said.
    let strong =
        unsafe { pg_sys::pg_strong_random(fresh.as_mut_ptr().cast(), size_of_val(&fresh)) };
    if !strong {
        Error::new(Code::Internal, "the system has no randomness to give")
            .detail("PostgreSQL's source of strong random numbers has failed.")
            .hint("Look after the random numbers of the server's system (OpenSSL, /dev/urandom).")
            .raise();
    }
    let [one, rest @ ..] = fresh;
    DRAWN.with_borrow_mut(|drawn| drawn.extend(rest));
    one
}
