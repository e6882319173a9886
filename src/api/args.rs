//! Arguments: what is accepted, and what is refused with 22023.

use pgrx::datum::Interval;
use pgrx::{FromDatum, pg_sys};

use crate::datum::Jsonb;
use crate::error::{Error, Result};
use crate::store::clock::{self, HOUR};
use crate::store::group::QUEUE_MODE;
use crate::store::queue::UNORDERED;

const NAME_MAX: usize = 255;
const TRANSACTION_ID_MAX: usize = 1024;
const PAYLOAD_MAX: usize = 16 * 1024 * 1024;
pub const LEASE_TIME_MAX: i64 = 12 * HOUR;

/// The argument, which must not be NULL.
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

fn text<'a>(what: &str, value: &'a str, max: usize) -> Result<&'a str> {
    if value.is_empty() || value.len() > max {
        return Err(Error::invalid(
            format!("{what} must be 1 to {max} bytes long"),
            format!("It is {} bytes long.", value.len()),
            if value.is_empty() { "Pass some text." } else { "Shorten it; it is never cut." },
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

/// A payload: any jsonb up to 16 MiB; JSON null is one, SQL NULL is not.
pub fn payload(value: Option<Jsonb>) -> Result<Jsonb> {
    let value = value.ok_or_else(|| {
        Error::invalid(
            "payload must not be NULL",
            "SQL NULL is no payload.",
            "Push JSON null ('null'::jsonb) if nothing is what you mean.",
        )
    })?;
    sized("payload", value)
}

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

/// An integer within a range.
pub fn within(what: &str, value: i32, low: i32, high: i32) -> Result<i32> {
    if (low..=high).contains(&value) {
        return Ok(value);
    }
    Err(Error::invalid(
        format!("{what} is out of range"),
        format!("It is {value}."),
        format!("Pass {low} to {high}."),
    ))
}

/// An interval's length in microseconds, within a range of which `range` tells the user.
pub fn length(what: &str, value: Interval, low: i64, high: i64, range: &str) -> Result<i64> {
    match clock::micros(value) {
        Some(length) if (low..=high).contains(&length) => Ok(length),
        other => Err(Error::invalid(
            format!("{what} is out of range"),
            match other {
                Some(length) => format!("It is {} seconds.", length as f64 / 1e6),
                None => "It is infinite, or too long to be counted in microseconds.".into(),
            },
            format!("Pass {range}."),
        )),
    }
}

/// How long a lease may be.
pub fn lease_time(value: Interval) -> Result<i64> {
    length("lease_time", value, 1, LEASE_TIME_MAX, "more than 0, at most 12 hours")
}

/// The elements of an array, which must have one dimension.
pub fn elements<T: FromDatum>(
    what: &str,
    elements: Option<Vec<Option<pg_sys::Datum>>>,
) -> Result<Vec<Option<T>>> {
    let elements = elements.ok_or_else(|| {
        Error::invalid(
            format!("{what} must be a one-dimensional array"),
            "It has more dimensions.",
            "Flatten it.",
        )
    })?;
    // SAFETY: T is the array's element type, and the copy the elements lie in is not freed.
    Ok(elements.into_iter().map(|e| e.and_then(|d| unsafe { T::from_datum(d, false) })).collect())
}

/// The elements of an array, none of which may be NULL; None for no array.
pub fn given_elements<T: FromDatum>(
    what: &str,
    array: Option<Option<Vec<Option<pg_sys::Datum>>>>,
) -> Result<Option<Vec<T>>> {
    let Some(array) = array else { return Ok(None) };
    let found: Option<Vec<T>> = elements(what, array)?.into_iter().collect();
    let found = found.ok_or_else(|| {
        Error::invalid(
            format!("{what} must not contain NULL"),
            "An element is NULL.",
            "Name each message.",
        )
    })?;
    Ok(Some(found))
}

/// The elements of an array that goes beside another of `count` elements; NULLs where there is none.
pub fn parallel<T: FromDatum>(
    what: &str,
    array: Option<Option<Vec<Option<pg_sys::Datum>>>>,
    count: usize,
) -> Result<Vec<Option<T>>> {
    let Some(array) = array else { return Ok((0..count).map(|_| None).collect()) };
    let found = elements(what, array)?;
    if found.len() == count {
        return Ok(found);
    }
    Err(Error::invalid(
        format!("{what} must have as many elements as payloads"),
        format!("It has {}, payloads has {count}.", found.len()),
        "Use NULL elements for messages that have none.",
    ))
}

/// How a queue or a group is ordered.
pub fn ordering(name: &str) -> Result<()> {
    match name {
        "partition" | UNORDERED => Ok(()),
        other => Err(Error::invalid(
            format!("unknown ordering \"{other}\""),
            "A queue is ordered by partition or not at all.",
            "Use 'partition' or 'none'.",
        )),
    }
}
