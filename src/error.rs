//! Every error a user can meet, and how it leaves: SQLSTATE, message, DETAIL, HINT.

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use serde_json::value::RawValue;

use crate::ballast;

/// A SQLSTATE of PostgreSQL, or one of the extension's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// QN001: the lease ran out.
    LeaseExpired,
    /// QN002: somebody else was given these messages since.
    LeaseSuperseded,
    /// QN003: no such lease.
    LeaseUnknown,
    /// QN004: the message is not part of the lease.
    MessageNotInLease,
    /// QN005: the message was settled otherwise under this lease.
    AlreadySettled,
    /// QN010: a required marker write was not applied.
    KvPrecondition,
    /// A pushed transaction_id was stored before: an outcome of a bundle, never raised.
    Duplicate,
    /// 42704
    UndefinedObject,
    /// QN020: as many messages wait as the queue allows.
    QueueFull,
    /// 25001
    ActiveSqlTransaction,
    /// 22023
    InvalidParameterValue,
    /// 0A000: named by the contract, not built yet.
    ObjectNotInPrerequisiteState,
    /// 40001
    SerializationFailure,
    /// 53200
    OutOfMemory,
    /// XX000: stored state that nobody but this extension writes does not read back.
    Internal,
}

impl Code {
    /// The five characters.
    pub const fn sqlstate(self) -> &'static [u8; 5] {
        match self {
            Code::LeaseExpired => b"QN001",
            Code::LeaseSuperseded => b"QN002",
            Code::LeaseUnknown => b"QN003",
            Code::MessageNotInLease => b"QN004",
            Code::AlreadySettled => b"QN005",
            Code::KvPrecondition => b"QN010",
            Code::QueueFull => b"QN020",
            Code::Duplicate => b"23505",
            Code::UndefinedObject => b"42704",
            Code::ActiveSqlTransaction => b"25001",
            Code::InvalidParameterValue => b"22023",
            Code::ObjectNotInPrerequisiteState => b"55000",
            Code::SerializationFailure => b"40001",
            Code::OutOfMemory => b"53200",
            Code::Internal => b"XX000",
        }
    }

    /// PostgreSQL's packing of a SQLSTATE into an int: six bits a character.
    pub const fn packed(self) -> c_int {
        let text = self.sqlstate();
        let mut packed = 0;
        let mut i = 0;
        while i < 5 {
            packed |= (((text[i] - b'0') & 0x3f) as c_int) << (6 * i);
            i += 1;
        }
        packed
    }
}

/// An error on its way to the user.
#[derive(Clone, Debug)]
pub struct Error {
    pub code: Code,
    pub message: String,
    pub detail: Option<String>,
    pub hint: Option<String>,
    /// What a bundle's answer says of it, beyond the message.
    pub facts: Vec<(&'static str, Box<RawValue>)>,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), detail: None, hint: None, facts: Vec::new() }
    }

    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub fn facts(mut self, facts: Vec<(&'static str, Box<RawValue>)>) -> Self {
        self.facts = facts;
        self
    }

    /// 22023: `message` names the argument, `detail` says what came, `hint` what is accepted.
    pub fn invalid(
        message: impl Into<String>,
        detail: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self::new(Code::InvalidParameterValue, message).detail(detail).hint(hint)
    }

    /// 42704 for a queue.
    pub fn no_such_queue(queue: &str) -> Self {
        Self::new(Code::UndefinedObject, format!("queue \"{queue}\" does not exist"))
            .detail("No queue of this name has been configured or pushed to in this database.")
            .hint("Create it with queen_configure, or push to it with queen_mq.auto_create on.")
    }

    /// 42704 for the extension itself: dropped while a call of it was running.
    pub fn dropped() -> Self {
        Self::new(Code::UndefinedObject, "the extension queen_mq has been dropped")
            .detail("Its tables went away while the call was running.")
            .hint("Create the extension again.")
    }

    /// 40001: somebody changed what this transaction's snapshot still shows as it was.
    pub fn conflict(what: &str) -> Self {
        Self::new(Code::SerializationFailure, "could not serialize access due to concurrent update")
            .detail(format!("{what} changed after this transaction took its snapshot."))
            .hint("Roll the transaction back and run it again.")
    }

    /// XX000: state written by the extension does not read back.
    pub fn corrupt(what: impl Into<String>) -> Self {
        Self::new(Code::Internal, what)
            .hint("The tables of schema queen_mq are written by the extension alone; restore what was changed by hand.")
    }

    /// Leave as a PostgreSQL ERROR.
    pub fn raise(self) -> ! {
        // Until it is thrown it is copied several times.
        if self.code == Code::OutOfMemory {
            ballast::drop_ballast();
        }
        leave_with(self.code);
        let mut report = ErrorReport::new(
            PgSqlErrorCode::ERRCODE_EXTERNAL_ROUTINE_EXCEPTION,
            self.message,
            "queen_mq",
        );
        if let Some(detail) = self.detail {
            report = report.set_detail(detail);
        }
        if let Some(hint) = self.hint {
            report = report.set_hint(hint);
        }
        report.report(PgLogLevel::ERROR);
        unreachable!("ERROR does not return")
    }
}

/// The beginning of a text: at most so many bytes, and whole characters.
pub fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

/// Unwrap, or raise.
pub trait OrRaise<T> {
    fn or_raise(self) -> T;
}

impl<T> OrRaise<T> for Result<T> {
    fn or_raise(self) -> T {
        self.unwrap_or_else(|error| error.raise())
    }
}

thread_local! {
    /// The SQLSTATE that the ERROR now being raised shall carry.
    static LEAVING: Cell<c_int> = const { Cell::new(0) };
}

/// pgrx reports errors with the SQLSTATEs it knows and turns all others into XX000. PostgreSQL
/// runs the error context callbacks just before it throws, and what they set wins: so the code
/// is set there. The callback is pushed for this one error; whoever catches the error restores
/// the stack that it had, as PG_TRY and the main loop always do.
fn leave_with(code: Code) {
    static mut CALLBACK: pg_sys::ErrorContextCallback = pg_sys::ErrorContextCallback {
        previous: std::ptr::null_mut(),
        callback: Some(set_code),
        arg: std::ptr::null_mut(),
    };
    LEAVING.set(code.packed());
    // SAFETY: a backend has one thread. CALLBACK lives for ever, so the stack never holds a
    // dangling pointer; it can't be on the stack twice, since an error empties it down to the
    // handler that catches, and this function is only called on the way to an error.
    unsafe {
        let callback = &raw mut CALLBACK;
        if pg_sys::error_context_stack != callback {
            (*callback).previous = pg_sys::error_context_stack;
            pg_sys::error_context_stack = callback;
        }
    }
}

unsafe extern "C-unwind" fn set_code(_: *mut c_void) {
    unsafe extern "C-unwind" {
        fn errcode(sqlerrcode: c_int) -> c_int;
    }
    let code = LEAVING.replace(0);
    if code != 0 {
        // SAFETY: errfinish calls this with an error on the stack, which is all errcode needs.
        unsafe { errcode(code) };
    }
}
