//! The way into every function of SQL. The first argument of each is a [`Call`], which SQL does not
//! see. pgrx makes it before it reads the other arguments, and that checks whether the function may
//! run here at all: it is declared as the library expects (see [`super::signatures`]), and the
//! database is UTF-8. The function's body then runs in [`Call::answer`], and what touches tables in
//! one of [`Call::read`], [`Call::write`] and [`Call::write_if_needed`].

use std::cell::{Cell, RefCell};

use pgrx::pg_sys;

use super::signatures::{SIGNATURES, Signature};
use crate::error::{Code, Error, Result};
use crate::pg::address_map::AddressMap;
use crate::pg::ballast::Ballast;
use crate::pg::call_record::{CallRecord, HiddenArgument, hidden_argument};
use crate::pg::declared::{self, DeclaredFunction};
use crate::pg::raise::OrRaise;
use crate::pg::{databases, recovery, spi, transaction};
use crate::worker;

/// A call of a function of SQL.
pub struct Call {
    signature: &'static Signature,
    /// The memory that errors of the call need, taken before it reads its arguments.
    _ballast: Ballast,
}

impl Call {
    /// Check the call, and raise an ERROR if something is wrong with it.
    pub fn accept(record: CallRecord<'_>) -> Self {
        let function = record.function();
        let accept = || {
            let ballast = Ballast::hold()?;
            let signature = signature_of(function)?;
            refuse_encoding()?;
            Ok(Self { signature, _ballast: ballast })
        };
        accept().or_raise()
    }

    /// What the function answers, or the ERROR that it raises: `body` reads the arguments, and does
    /// the work within [`Call::read`], [`Call::write`] or [`Call::write_if_needed`].
    pub fn answer<T>(&self, body: impl FnOnce() -> Result<T>) -> T {
        body().or_raise()
    }

    /// Run `body`, which may write, as the role that owns the extension. Error 25006 on a standby
    /// and in a READ ONLY transaction.
    pub fn write<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        self.need_writable()?;
        self.read(body)
    }

    /// Run `body` as the role that owns the extension, in an SPI connection. The launcher is told
    /// that this session uses the extension, so that a worker serves its database.
    pub fn read<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        worker::announce();
        spi::connected(body)
    }

    /// Run `body` as [`Call::read`] does; in a READ ONLY transaction PostgreSQL itself refuses its
    /// writes. On a standby error 25006 says so.
    pub fn write_if_needed<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        self.need_primary()?;
        self.read(body)
    }

    /// Error 25006 where this session cannot write.
    pub fn need_writable(&self) -> Result<()> {
        self.need_primary()?;
        match transaction::is_read_only() {
            false => Ok(()),
            true => Err(Error::new(
                Code::ReadOnly,
                format!("cannot execute {}() in a read-only transaction", self.signature.name),
            )
            .detail("The function writes.")
            .hint("Begin the transaction with READ WRITE.")),
        }
    }

    /// Error 25006 on a standby.
    fn need_primary(&self) -> Result<()> {
        match recovery::is_under_way() {
            false => Ok(()),
            true => Err(Error::new(
                Code::ReadOnly,
                format!("cannot execute {}() on a standby", self.signature.name),
            )
            .detail("The function writes, and this server is in recovery.")
            .hint("Connect to the primary: target_session_attrs=read-write.")),
        }
    }
}

impl HiddenArgument for Call {
    fn of(record: CallRecord<'_>) -> Self {
        Self::accept(record)
    }
}

hidden_argument!(Call);

/// Refuse a database of another encoding than UTF-8. Texts are UTF-8 in the library, and would be
/// stored there as other texts.
fn refuse_encoding() -> Result<()> {
    match databases::is_utf8() {
        true => Ok(()),
        false => Err(Error::new(
            Code::FeatureNotSupported,
            "queen_mq needs a database whose encoding is UTF8",
        )
        .detail(format!("The encoding of this database is {}.", databases::encoding()))
        .hint("Create a database with ENCODING 'UTF8'.")),
    }
}

thread_local! {
    /// OIDs of functions whose declaration has been checked. Emptied when a function changes.
    static CHECKED: RefCell<AddressMap<u32, &'static Signature>> = RefCell::default();
    /// The session is told of changes of functions.
    static IS_LISTENING: Cell<bool> = const { Cell::new(false) };
}

/// The signature of a function, after a check that it is declared so.
fn signature_of(function: pg_sys::Oid) -> Result<&'static Signature> {
    if let Some(known) = CHECKED.with_borrow(|known| known.get(&function.to_u32()).copied()) {
        return Ok(known);
    }
    if !IS_LISTENING.replace(true) {
        declared::on_change(forget);
    }
    let declared = DeclaredFunction::read(function);
    let declared =
        declared.ok_or_else(|| Error::mismatch("a function", "It is not known by its OID."))?;
    let expected = SIGNATURES.iter().find(|signature| signature.name == declared.symbol);
    match expected.filter(|expected| is_declared(&declared, expected)) {
        Some(signature) => {
            CHECKED.with_borrow_mut(|known| known.insert(function.to_u32(), signature));
            Ok(signature)
        }
        None => Err(Error::mismatch(
            &format!("the function {}", declared.symbol),
            "Its arguments or its result are declared otherwise than the library expects.",
        )),
    }
}

fn forget() {
    // The map is borrowed only while no code of PostgreSQL runs, so this is never refused.
    CHECKED.with(|known| known.try_borrow_mut().map(|mut known| known.clear()).unwrap_or_default());
}

/// Whether the function is declared as the library expects.
fn is_declared(function: &DeclaredFunction, expected: &Signature) -> bool {
    function.arguments == expected.arguments && function.result == expected.result
}
