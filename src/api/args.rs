//! Arguments: what is accepted, and what is refused with 22023. Every function of SQL reads its
//! arguments with these, before it reads or writes a table.

use std::fmt::Display;
use std::rc::Rc;

use pgrx::FromDatum;
use pgrx::datum::Interval;

use crate::error::{Error, Result, cut};
use crate::pg::allocator;
use crate::pg::arrays::{Array, Elements};
use crate::pg::ballast::Ballast;
use crate::pg::clock::{self, DAY, HOUR};
use crate::pg::datum::{JsonText, Jsonb};
use crate::store::group::QUEUE_MODE;
use crate::store::queue::{LATEST, UNORDERED};

const NAME_MAX: usize = 255;
const QUEUES_MAX: usize = 32;
const TRANSACTION_ID_MAX: usize = 1024;
const PAYLOAD_MAX: usize = 16 * 1024 * 1024;
pub const LEASE_TIME_MAX: i64 = 12 * HOUR;
/// In microseconds. No message is scheduled for later than this.
pub const YEAR: i64 = 366 * DAY;

/// The argument `what`, which must not be NULL.
pub fn required<T>(what: &str, value: Option<T>) -> Result<T> {
    value.ok_or_else(|| {
        Error::invalid(
            format!("{what} must not be NULL"),
            format!("The argument {what} has no default."),
            format!("Pass a value for {what}."),
        )
    })
}

/// A queue, partition or consumer group: 1..255 bytes without control characters.
pub fn name<'a>(what: &str, value: Option<&'a str>) -> Result<&'a str> {
    text(what, required(what, value)?, NAME_MAX)
}

/// A transaction_id: 1..1024 bytes without control characters.
pub fn transaction_id(value: &str) -> Result<&str> {
    text("transaction_id", value, TRANSACTION_ID_MAX)
}

/// The key of a timer: 1..1024 bytes without control characters.
pub fn timer_key(value: Option<&str>) -> Result<&str> {
    text("timer_key", required("timer_key", value)?, TRANSACTION_ID_MAX)
}

/// The key of a recurring message: 1..990 bytes without control characters. With a time behind it,
/// it is a transaction_id.
pub fn recurring_key(value: Option<&str>) -> Result<&str> {
    text("timer_key", required("timer_key", value)?, TRANSACTION_ID_MAX - 34)
}

/// A schedule: 1..1024 bytes without control characters.
pub fn schedule(value: Option<&str>) -> Result<&str> {
    text("schedule", required("schedule", value)?, TRANSACTION_ID_MAX)
}

fn text<'a>(what: &str, value: &'a str, max: usize) -> Result<&'a str> {
    if value.is_empty() || value.len() > max {
        return Err(Error::invalid(
            format!("{what} must be 1 to {max} bytes long"),
            format!("It is {} bytes long.", value.len()),
            if value.is_empty() { "Pass some text." } else { "Pass a shorter text." },
        ));
    }
    if let Some(at) = value.bytes().position(|byte| byte < 0x20 || byte == 0x7f) {
        return Err(Error::invalid(
            format!("{what} must not contain control characters"),
            format!("The byte at position {} is {:#04x}.", at + 1, value.as_bytes()[at]),
            "Use printable text.",
        ));
    }
    Ok(value)
}

/// A consumer group; NULL is queue mode.
pub fn group(value: Option<&str>) -> Result<&str> {
    match value {
        None => Ok(QUEUE_MODE),
        some => name("consumer_group", some),
    }
}

/// Queues that a call looks at in this order: 1 to 32 names, each once.
pub fn queues<'a>(value: Option<impl Array>) -> Result<Vec<&'a str>> {
    let given = Some(required("queues", value)?);
    let queues = given_elements::<&str>("queues", given, &QUEUES)?.unwrap_or_default();
    if !(1..=QUEUES_MAX).contains(&queues.len()) {
        return Err(Error::invalid(
            format!("queues must name 1 to {QUEUES_MAX} queues"),
            format!("It names {}.", queues.len()),
            format!("Pass 1 to {QUEUES_MAX} names."),
        ));
    }
    for (place, queue) in queues.iter().enumerate() {
        name("an element of queues", Some(*queue))?;
        if queues[..place].contains(queue) {
            return Err(Error::invalid(
                format!("queue \"{queue}\" is named twice in queues"),
                format!("It is element {} once more.", place + 1),
                "Name each queue once.",
            ));
        }
    }
    Ok(queues)
}

/// A payload: any jsonb up to 16 MiB; JSON null is one, SQL NULL is not.
pub fn payload(value: Option<Jsonb>) -> Result<Jsonb> {
    let value = value.ok_or_else(|| {
        Error::invalid(
            "payload must not be NULL",
            "SQL NULL is not a payload.",
            "To push no content, push JSON null ('null'::jsonb).",
        )
    })?;
    sized("payload", value)
}

/// Headers: any jsonb up to 16 MiB, or SQL NULL for none.
pub fn headers(value: Option<Jsonb>) -> Result<Option<Jsonb>> {
    value.map(|headers| sized("headers", headers)).transpose()
}

fn sized(what: &str, value: Jsonb) -> Result<Jsonb> {
    match value.size() {
        size if size > PAYLOAD_MAX => Err(Error::invalid(
            format!("{what} is larger than 16 MiB"),
            format!("It is {size} bytes as jsonb."),
            "Store it elsewhere and push a reference.",
        )),
        _ => Ok(value),
    }
}

/// A number from `low` to `high`.
pub fn within<T: PartialOrd + Display + Copy>(what: &str, value: T, low: T, high: T) -> Result<T> {
    if (low..=high).contains(&value) {
        return Ok(value);
    }
    Err(Error::invalid(
        format!("{what} is out of range"),
        format!("It is {value}."),
        format!("Pass {low} to {high}."),
    ))
}

/// An interval's length in microseconds, from `low` to `high`; `range` says so to the user.
pub fn length(what: &str, value: Interval, low: i64, high: i64, range: &str) -> Result<i64> {
    match clock::micros(value) {
        Some(length) if (low..=high).contains(&length) => Ok(length),
        other => Err(Error::invalid(
            format!("{what} is out of range"),
            match other {
                Some(length) => format!("It is {} seconds.", length as f64 / 1e6),
                None => "It is infinite or too long.".into(),
            },
            format!("Pass {range}."),
        )),
    }
}

/// How long a lease is to be, in microseconds.
pub fn lease_time(value: Interval) -> Result<i64> {
    length("lease_time", value, 1, LEASE_TIME_MAX, "more than 0, at most 12 hours")
}

/// How much later a message is to be delivered, in microseconds.
pub fn delay(value: Interval) -> Result<i64> {
    length("delay", value, 0, YEAR, "0 to 366 days")
}

/// The field `delayMs`, in microseconds.
pub fn milliseconds(delay: f64) -> Result<i64> {
    const YEAR_MS: f64 = YEAR as f64 / 1000.0;
    match delay {
        delay if (0.0..=YEAR_MS).contains(&delay) => Ok((delay * 1000.0).round() as i64),
        delay => Err(Error::invalid(
            "delayMs is out of range",
            format!("It is {delay}."),
            format!("Pass 0 to {YEAR_MS}, which is 366 days."),
        )),
    }
}

/// How large an argument may be. A refused allocation of Rust is no ERROR, so the size that a
/// caller chooses is checked before the argument is fetched, decompressed or parsed.
pub struct Bounds {
    pub count: usize,
    /// Bytes of the whole argument in PostgreSQL, without compression.
    pub bytes: usize,
}

const MIB: usize = 1024 * 1024;

/// Messages of one push: ten times what bulk loads use. Their bytes are in memory once, as the
/// argument, with some hundred bytes more for each message.
pub const MESSAGES: Bounds = Bounds { count: 1_000_000, bytes: 256 * MIB };
/// Messages of one push as JSON, which is in memory twice: as text and parsed.
pub const JSON_MESSAGES: Bounds = Bounds { count: MESSAGES.count, bytes: 64 * MIB };
/// Messages named in one settlement. A lease holds 10,000 at most, and a caller may repeat names. A
/// name is at most a transaction_id of 1024 bytes and its header.
pub const NAMES: Bounds = Bounds { count: 100_000, bytes: 104 * MIB };
/// Results of a settlement, and a bundle's operations and timers.
pub const STATEMENTS: Bounds = Bounds { count: NAMES.count, bytes: 64 * MIB };
/// A bundle's operations on markers, of which it may have 64: room for the largest values, twice.
pub const MARKERS: Bounds = Bounds { count: 10_000, bytes: 8 * MIB };
/// Keys of markers that are read at once: with the largest values they are 64 MiB and more.
pub const KEYS: Bounds = Bounds { count: 10_000, bytes: 8 * MIB };
/// Leases that a bundle requires.
pub const LEASES: Bounds = Bounds { count: 10_000, bytes: MIB };
/// Queues to look at.
pub const QUEUES: Bounds = Bounds { count: 10_000, bytes: MIB };
/// Options by their names.
pub const OPTIONS: Bounds = Bounds { count: 100, bytes: 64 * 1024 };

/// Bytes of `error`, which may be a stack trace: each dead letter of the call keeps them.
const ERROR_MAX: usize = 8 * 1024;

/// The text of an error, shared by all messages of the call; what is longer than 8 KiB is cut.
pub fn error_text(text: &str) -> Rc<str> {
    cut(text, ERROR_MAX).into()
}

/// The beginning of a text that was given in place of a name, for a message to quote.
pub fn quoted(text: &str) -> &str {
    cut(text, NAME_MAX)
}

fn within_bytes(what: &str, bytes: usize, bounds: &Bounds) -> Result<()> {
    if bytes <= bounds.bytes {
        return Ok(());
    }
    Err(Error::invalid(
        format!("{what} is too large"),
        format!("It takes {bytes} bytes."),
        format!("Pass at most {} bytes in one call; call several times.", bounds.bytes),
    ))
}

fn within_count(what: &str, count: usize, bounds: &Bounds) -> Result<()> {
    if count <= bounds.count {
        return Ok(());
    }
    Err(Error::invalid(
        format!("{what} has too many elements"),
        format!("It has {count}."),
        format!("Pass at most {} in one call; call several times.", bounds.count),
    ))
}

/// A JSON argument within its bounds, as text; and the number of its elements, if it is an array.
pub fn json_text(what: &str, value: Jsonb, bounds: &Bounds) -> Result<(JsonText, usize)> {
    within_bytes(what, value.size(), bounds)?;
    let _ballast = Ballast::hold()?;
    let count = value.array_length().unwrap_or(0);
    within_count(what, count, bounds)?;
    Ok((value.to_text(), count))
}

/// The elements of an array, which must have one dimension.
pub fn elements(what: &str, array: impl Array, bounds: &Bounds) -> Result<Elements> {
    within_bytes(what, array.size(), bounds)?;
    let _ballast = Ballast::hold()?;
    let array = array.open();
    if array.dimensions > 1 {
        return Err(Error::invalid(
            format!("{what} must be a one-dimensional array"),
            "It has more dimensions.",
            "Pass a one-dimensional array.",
        ));
    }
    within_count(what, array.count, bounds)?;
    Ok(array.elements())
}

/// The elements of an array, none of which may be NULL; None for no array.
pub fn given_elements<T: FromDatum>(
    what: &str,
    array: Option<impl Array>,
    bounds: &Bounds,
) -> Result<Option<Vec<T>>> {
    let Some(array) = array else { return Ok(None) };
    let found = elements(what, array, bounds)?;
    let each = found.iter::<T>().map(|element| element.ok_or_else(|| null_element(what)));
    allocator::list(found.len(), each).map(Some)
}

/// 22023: an element of the array `what` is NULL.
pub fn null_element(what: &str) -> Error {
    Error::invalid(
        format!("{what} must not contain NULL"),
        "An element is NULL.",
        format!("Remove the NULL elements from {what}."),
    )
}

/// The elements of an array that accompanies another one of `count` elements; None without an
/// array.
pub fn parallel(what: &str, array: Option<impl Array>, count: usize) -> Result<Elements> {
    let Some(array) = array else { return Ok(Elements::none()) };
    let found = elements(what, array, &MESSAGES)?;
    if found.len() == count {
        return Ok(found);
    }
    Err(Error::invalid(
        format!("{what} must have as many elements as payloads"),
        format!("It has {}, payloads has {count}.", found.len()),
        "Use NULL elements for messages that have none.",
    ))
}

/// The ordering of a queue or a group: a known name.
pub fn ordering(name: &str) -> Result<()> {
    match name {
        "partition" | UNORDERED => Ok(()),
        other => Err(Error::invalid(
            format!("unknown ordering \"{}\"", quoted(other)),
            "A queue is ordered by partition or not at all.",
            "Use 'partition' or 'none'.",
        )),
    }
}

/// The delivery of a queue: a known name.
pub fn delivery(name: &str) -> Result<()> {
    match name {
        "all" | LATEST => Ok(()),
        other => Err(Error::invalid(
            format!("unknown delivery \"{}\"", quoted(other)),
            "A queue delivers all messages of a partition, or the newest one alone.",
            "Use 'all' or 'latest'.",
        )),
    }
}
