//! Every error a user can meet, and how it leaves: SQLSTATE, message, DETAIL, HINT.

use std::ffi::{CStr, c_int};
use std::fmt::Display;

use serde_json::value::RawValue;

/// A SQLSTATE of PostgreSQL, or one of the extension's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// QN001: the lease ran out.
    LeaseExpired,
    /// QN002: another consumer was given these messages since.
    LeaseSuperseded,
    /// QN003: no such lease.
    LeaseUnknown,
    /// QN004: the message is not part of the lease.
    MessageNotInLease,
    /// QN005: this lease has completed the message, and now something else is said of it.
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
    /// 42501
    InsufficientPrivilege,
    /// 22023
    InvalidParameterValue,
    /// 55000
    ObjectNotInPrerequisiteState,
    /// 0A000
    FeatureNotSupported,
    /// 25006
    ReadOnly,
    /// 23502
    NotNullViolation,
    /// 40001
    SerializationFailure,
    /// 53200
    OutOfMemory,
    /// XX000: state that only the extension writes does not read back.
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
            Code::InsufficientPrivilege => b"42501",
            Code::InvalidParameterValue => b"22023",
            Code::ObjectNotInPrerequisiteState => b"55000",
            Code::FeatureNotSupported => b"0A000",
            Code::ReadOnly => b"25006",
            Code::NotNullViolation => b"23502",
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

/// Something to tell a client that is no error.
#[derive(Clone, Debug)]
pub struct ClientNotice {
    pub message: String,
    pub detail: Option<String>,
    pub hint: Option<String>,
}

impl ClientNotice {
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), detail: None, hint: None }
    }

    pub fn detail(self, detail: impl Into<String>) -> Self {
        Self { detail: Some(detail.into()), ..self }
    }

    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
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

    /// A refused argument: the DETAIL says first in which element of a list it is.
    pub fn in_element(mut self, element: impl Display) -> Self {
        if let (Code::InvalidParameterValue, Some(detail)) = (self.code, &self.detail) {
            self.detail = Some(format!("In {element}: {detail}"));
        }
        self
    }

    /// 53200: the system has refused memory.
    pub fn out_of_memory() -> Self {
        Self::new(Code::OutOfMemory, "out of memory")
            .detail("The server process did not get the memory that a call of queen_mq needed.")
            .hint("Do less in one call, or give the server more memory.")
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

    /// 23502, in the words of PostgreSQL: a column of ours was made NOT NULL by hand.
    pub fn null_in(table: &CStr, column: &CStr) -> Self {
        let (table, column) = (table.to_string_lossy(), column.to_string_lossy());
        let what = format!(
            "null value in column \"{column}\" of relation \"{table}\" violates not-null constraint"
        );
        Self::new(Code::NotNullViolation, what)
            .detail("queen_mq writes NULL to this column.")
            .hint("Drop the NOT NULL constraint that was added by hand.")
    }

    /// 40001: another transaction changed what this transaction's snapshot still shows as it was.
    pub fn conflict(what: &str) -> Self {
        Self::new(Code::SerializationFailure, "could not serialize access due to concurrent update")
            .detail(format!("{what} changed after this transaction took its snapshot."))
            .hint("Roll the transaction back and run it again.")
    }

    /// 0A000: a table of ours was altered in a way that its direct reads and writes can't honour.
    pub fn unsupported(what: impl Into<String>) -> Self {
        Self::new(Code::FeatureNotSupported, what)
    }

    /// 0A000: a statement of ours did not write a row to one of our tables.
    pub fn suppressed(table: &str) -> Self {
        Self::unsupported(format!("a trigger of table {table} has suppressed a row of queen_mq"))
            .detail("A BEFORE ROW trigger returned NULL; queen_mq would lose this row.")
            .hint("Let the trigger return the row, or raise an error of its own.")
    }

    /// 55000: `what` is not as the extension has made it.
    pub fn altered(what: impl AsRef<str>) -> Self {
        let message = format!("{} is not as queen_mq has made it", what.as_ref());
        Self::new(Code::ObjectNotInPrerequisiteState, message)
            .hint("Put back what was changed by hand in schema queen_mq.")
    }

    /// 55000: `what` is declared otherwise than this library expects, by an extension of another
    /// version or by hand.
    pub fn mismatch(what: &str, why: impl Into<String>) -> Self {
        let version = env!("CARGO_PKG_VERSION");
        let message = format!("{what} does not match the library queen_mq, version {version}");
        Self::new(Code::ObjectNotInPrerequisiteState, message).detail(why).hint(
            "Run ALTER EXTENSION queen_mq UPDATE, or install the library of the extension's \
             version.",
        )
    }

    /// XX000: state written by the extension does not read back.
    pub fn corrupt(what: impl Into<String>) -> Self {
        Self::new(Code::Internal, what).hint(
            "If a table of schema queen_mq was changed by hand, put back what was changed; \
             otherwise report this as a bug.",
        )
    }

    /// [`Error::corrupt`], of a state that lies in `table`.
    pub fn corrupt_in(table: &str, what: impl Into<String>) -> Self {
        Self::corrupt(what).detail(format!("It is stored in table {table}."))
    }
}

/// The beginning of a text: at most `most` bytes, in whole characters.
pub fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}
