//! What is to be done when transactions of this process end.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use pgrx::{pg_guard, pg_sys};

/// How a transaction has ended, or has left this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionEnd {
    Committed,
    RolledBack,
    Prepared,
}

/// Functions that are called at the ends of transactions. Nothing in them may fail.
pub struct TransactionListener {
    at_end: fn(TransactionEnd),
    at_undo: fn(pg_sys::SubTransactionId),
    after_locks: fn(),
    /// How many of the callbacks this process has registered.
    registered: AtomicUsize,
}

/// Of these there are three.
const CALLBACKS: usize = 3;

impl TransactionListener {
    /// `at_end`: the transaction has ended, and holds its locks still. `at_undo`: a subtransaction
    /// of this number, and those in it, have been rolled back: the rows that they had locked are
    /// free. `after_locks`: the transaction has given up its locks, and has told other sessions of
    /// its changes of the catalogue; it may be called more than once.
    pub const fn new(
        at_end: fn(TransactionEnd),
        at_undo: fn(pg_sys::SubTransactionId),
        after_locks: fn(),
    ) -> Self {
        Self { at_end, at_undo, after_locks, registered: AtomicUsize::new(0) }
    }

    /// From now on, as long as this process lives, the functions are called. Costs nothing but the
    /// first time.
    #[inline]
    pub fn listen(&'static self) {
        if self.registered.load(Ordering::Relaxed) < CALLBACKS {
            self.register();
        }
    }

    #[cold]
    fn register(&'static self) {
        let own = ptr::from_ref(self).cast_mut().cast::<c_void>();
        let mut registered = self.registered.load(Ordering::Relaxed);
        while registered < CALLBACKS {
            // SAFETY: the callbacks are functions of this library, which stays loaded, and take
            // this argument.
            unsafe {
                match registered {
                    0 => pg_sys::RegisterXactCallback(Some(at_event), own),
                    1 => pg_sys::RegisterSubXactCallback(Some(at_subtransaction), own),
                    _ => pg_sys::RegisterResourceReleaseCallback(Some(at_release), own),
                }
            }
            // Each may fail for want of memory. What is registered once is not registered again.
            registered += 1;
            self.registered.store(registered, Ordering::Relaxed);
        }
    }
}

/// # Safety
/// The argument of a callback that [`TransactionListener::listen`] has registered.
unsafe fn listener(argument: *mut c_void) -> &'static TransactionListener {
    // SAFETY: made of such a reference.
    unsafe { &*argument.cast::<TransactionListener>() }
}

#[pg_guard]
unsafe extern "C-unwind" fn at_event(event: pg_sys::XactEvent::Type, argument: *mut c_void) {
    use pg_sys::XactEvent::{XACT_EVENT_ABORT, XACT_EVENT_COMMIT, XACT_EVENT_PREPARE};
    let end = match event {
        XACT_EVENT_COMMIT => TransactionEnd::Committed,
        XACT_EVENT_ABORT => TransactionEnd::RolledBack,
        XACT_EVENT_PREPARE => TransactionEnd::Prepared,
        _ => return,
    };
    // SAFETY: registered with this argument.
    let listener = unsafe { listener(argument) };
    (listener.at_end)(end);
}

#[pg_guard]
unsafe extern "C-unwind" fn at_subtransaction(
    event: pg_sys::SubXactEvent::Type,
    own: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    argument: *mut c_void,
) {
    if event == pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB {
        // SAFETY: registered with this argument.
        let listener = unsafe { listener(argument) };
        (listener.at_undo)(own);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn at_release(
    phase: pg_sys::ResourceReleasePhase::Type,
    _is_commit: bool,
    is_top_level: bool,
    argument: *mut c_void,
) {
    let after_locks = pg_sys::ResourceReleasePhase::RESOURCE_RELEASE_AFTER_LOCKS;
    if is_top_level && phase == after_locks {
        // SAFETY: registered with this argument.
        let listener = unsafe { listener(argument) };
        (listener.after_locks)();
    }
}
