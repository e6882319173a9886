//! Which arguments the functions for markers accept, and what they come to.

use super::NotApplied;

/// Microseconds since 2000-01-01 00:00 UTC: PostgreSQL's timestamptz.
pub type Micros = i64;

/// Bytes of a namespace, which is `^[a-z0-9][a-z0-9._-]{0,63}$`.
pub const MAX_NS_BYTES: usize = 64;
/// Bytes of a key: few enough that a namespace and a key always fit into an entry of an index.
pub const MAX_KEY_BYTES: usize = 512;
/// Bytes of a value: those of the jsonb, before compression.
pub const MAX_VALUE_BYTES: usize = 64 * 1024;
/// Rows that one call of `queen_kv_list` may return.
pub const MAX_LIST_ROWS: i32 = 1000;

const DAY: i128 = 86_400_000_000;
/// 4714-11-24 BC, the first moment of timestamptz.
const FIRST_TIME: i128 = -211_813_488_000_000_000;
/// 294277-01-01 AD, the first moment after the last one of timestamptz.
const END_OF_TIME: i128 = 9_223_371_331_200_000_000;

/// An argument that is not accepted (22023). The message names it, the detail says what came, and
/// the hint what is accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    pub message: String,
    pub detail: String,
    pub hint: &'static str,
}

impl Invalid {
    /// The error with these three texts.
    pub fn new(
        message: impl Into<String>,
        detail: impl Into<String>,
        hint: &'static str,
    ) -> Invalid {
        Invalid { message: message.into(), detail: detail.into(), hint }
    }
}

/// The name of a marker, checked. Names are ordered as markers are locked: by the bytes of the
/// namespace, then of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name<'a> {
    ns: &'a str,
    key: &'a str,
}

impl<'a> Name<'a> {
    /// The name, if namespace and key are accepted.
    pub fn new(ns: &'a str, key: &'a str) -> Result<Self, Invalid> {
        check_ns(ns)?;
        check_key(key)?;
        Ok(Name { ns, key })
    }

    /// The namespace.
    pub fn ns(&self) -> &'a str {
        self.ns
    }

    /// The key.
    pub fn key(&self) -> &'a str {
        self.key
    }
}

/// Whether this is a namespace.
pub fn check_ns(ns: &str) -> Result<(), Invalid> {
    let alnum = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let good = match ns.as_bytes() {
        [first, rest @ ..] => {
            alnum(*first)
                && rest.len() < MAX_NS_BYTES
                && rest.iter().all(|&c| alnum(c) || matches!(c, b'.' | b'_' | b'-'))
        }
        [] => false,
    };
    if good {
        return Ok(());
    }
    // A part of it: the error message stays short, whatever came.
    let shown: String = ns.chars().take(MAX_NS_BYTES + 1).collect();
    Err(Invalid::new(
        format!("invalid marker namespace \"{shown}\""),
        format!("The namespace has {} bytes.", ns.len()),
        "A namespace is 1 to 64 characters a-z, 0-9, dot, underscore or hyphen, and begins with a \
         letter or digit.",
    ))
}

/// Whether this is a key.
pub fn check_key(key: &str) -> Result<(), Invalid> {
    if (1..=MAX_KEY_BYTES).contains(&key.len()) {
        return Ok(());
    }
    Err(Invalid::new(
        "invalid marker key",
        format!("The key has {} bytes.", key.len()),
        "A key is 1 to 512 bytes of any text.",
    ))
}

/// Whether a value may have this size, which is that of the jsonb before compression.
pub fn check_value(bytes: usize) -> Result<(), Invalid> {
    if bytes <= MAX_VALUE_BYTES {
        return Ok(());
    }
    Err(Invalid::new(
        "marker value is too large",
        format!("The value has {bytes} bytes as jsonb."),
        "A marker holds up to 65536 bytes; store the value elsewhere and its name in the marker.",
    ))
}

/// How many rows a list may return, if this is a number of them.
pub fn check_max_rows(max_rows: i32) -> Result<i64, Invalid> {
    if (1..=MAX_LIST_ROWS).contains(&max_rows) {
        return Ok(i64::from(max_rows));
    }
    Err(Invalid::new(
        "invalid max_rows",
        format!("max_rows is {max_rows}."),
        "Ask for 1 to 1000 rows, and for the next ones with after => the last key.",
    ))
}

/// What an operation expects of the marker that it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// `expect => NULL`: there may be a marker, or none.
    Anything,
    /// `expect => 0`: there is no marker.
    Absent,
    /// The marker has this version. A write then never creates one.
    Version(i64),
}

impl Expect {
    /// What the argument `expect` says.
    pub fn new(expect: Option<i64>) -> Result<Self, Invalid> {
        match expect {
            None => Ok(Expect::Anything),
            Some(0) => Ok(Expect::Absent),
            Some(version) if version > 0 => Ok(Expect::Version(version)),
            Some(negative) => Err(Invalid::new(
                "invalid expect",
                format!("expect is {negative}."),
                "expect is 0 (must not exist) or the version that the marker must have.",
            )),
        }
    }

    /// Why the expectation fails, if it does. `live` is the version of the marker, if there is one.
    pub(super) fn failure(self, live: Option<i64>) -> Option<NotApplied> {
        match (self, live) {
            (Expect::Anything, _) | (Expect::Absent, None) => None,
            (Expect::Absent, Some(_)) => Some(NotApplied::Exists),
            (Expect::Version(_), None) => Some(NotApplied::Absent),
            (Expect::Version(wanted), Some(version)) => {
                (wanted != version).then_some(NotApplied::Version)
            }
        }
    }
}

/// A time to live: an interval, as PostgreSQL stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ttl {
    pub months: i32,
    pub days: i32,
    pub micros: i64,
}

impl Ttl {
    /// The length in microseconds by which PostgreSQL compares intervals: a month is 30 days, and a
    /// day is 24 hours.
    fn span(self) -> i128 {
        (i128::from(self.months) * 30 + i128::from(self.days)) * DAY + i128::from(self.micros)
    }

    /// Whether PostgreSQL can add the interval to `now` without an error. It adds months first,
    /// then days, then the rest, and each result must be within timestamptz. Months and days are
    /// estimated here, with a margin: 4800 months are 146,097 days, any number of months differs
    /// from that ratio by less than 62 days, and clock changes make a difference of less than one
    /// day.
    fn can_be_added_to(self, now: Micros) -> bool {
        let now = i128::from(now);
        let months = i128::from(self.months) * 146_097 / 4_800 * DAY;
        let month_margin = if self.months == 0 { 0 } else { 62 * DAY };
        let days = months + i128::from(self.days) * DAY;
        let day_margin = month_margin + if self.days == 0 { 0 } else { DAY };
        [(months, month_margin), (days, day_margin), (days + i128::from(self.micros), day_margin)]
            .iter()
            .all(|(offset, margin)| {
                now + offset - margin >= FIRST_TIME && now + offset + margin < END_OF_TIME
            })
    }

    fn refused(self, why: &str) -> Invalid {
        let Ttl { months, days, micros } = self;
        Invalid::new(
            "invalid ttl",
            format!("{why} (months: {months}, days: {days}, microseconds: {micros})."),
            "Pass a ttl greater than zero, or forever => true.",
        )
    }
}

/// When a marker that is written at `now` expires; None if it is kept forever. Exactly one of `ttl`
/// and `forever` must be given.
///
/// `add` is PostgreSQL's `now + interval`, which knows the calendar and the time zone. It is called
/// only if it cannot fail.
pub fn expiry(
    ttl: Option<Ttl>,
    forever: bool,
    now: Micros,
    add: impl FnOnce(Ttl) -> Micros,
) -> Result<Option<Micros>, Invalid> {
    let ttl = match (ttl, forever) {
        (None, true) => return Ok(None),
        (Some(ttl), false) => ttl,
        (ttl, _) => {
            let given = if ttl.is_some() { "Both were given." } else { "Neither was given." };
            return Err(Invalid::new(
                "a marker needs exactly one of ttl and forever",
                given,
                "Pass ttl => an interval, or forever => true.",
            ));
        }
    };
    if ttl.span() <= 0 {
        return Err(ttl.refused("The ttl is not greater than zero"));
    }
    if !ttl.can_be_added_to(now) {
        return Err(ttl.refused("The expiry is beyond the range of timestamptz"));
    }
    let expires_at = add(ttl);
    // Whether '1 month -29 days' is greater than zero depends on the length of the month.
    if expires_at <= now {
        return Err(ttl.refused("The expiry would be before now"));
    }
    Ok(Some(expires_at))
}

/// Bounds `(lower, upper)` of the keys that begin with `prefix` and come after `after`: by bytes,
/// `lower <= key < upper`.
///
/// In UTF-8, the order by bytes is the order by characters. So the keys with a prefix begin at the
/// prefix itself, and end before the prefix whose last character is one higher. No text of
/// PostgreSQL contains U+0000, so the first key that can follow `after` is `after` with U+0001
/// appended.
pub fn range(prefix: &str, after: Option<&str>) -> (String, String) {
    let beyond = after.map(|after| format!("{after}\u{1}"));
    let lower = match beyond {
        Some(beyond) if beyond.as_str() > prefix => beyond,
        _ => prefix.to_owned(),
    };
    let mut upper: Vec<char> = prefix.chars().collect();
    while let Some(last) = upper.pop() {
        if let Some(next) = (last..=char::MAX).nth(1) {
            upper.push(next);
            return (lower, upper.into_iter().collect());
        }
    }
    // The prefix has no character that can be raised. This is above every key: it has the highest
    // character only, and more bytes than a key may have.
    (lower, String::from(char::MAX).repeat(MAX_KEY_BYTES / 4 + 1))
}

/// What an increment needs of a number. PostgreSQL's numeric is such a number.
pub trait Number: Clone + PartialOrd {
    /// Whether it is finite, and so small that the sum of two such numbers exists.
    fn is_usable(&self) -> bool;
    /// The exact sum of two usable numbers.
    fn plus(&self, other: &Self) -> Self;
}

/// Whether these are arguments of an increment.
pub fn check_incr<N: Number>(delta: &N, min: Option<&N>, max: Option<&N>) -> Result<(), Invalid> {
    let named = [("delta", Some(delta)), ("min", min), ("max", max)];
    for (name, number) in named {
        if number.is_some_and(|n| !n.is_usable()) {
            return Err(Invalid::new(
                format!("invalid {name}"),
                format!("{name} is NaN, infinite, or has more than 131071 digits."),
                "Give an ordinary number.",
            ));
        }
    }
    if matches!((min, max), (Some(min), Some(max)) if min > max) {
        return Err(Invalid::new(
            "min is greater than max",
            "No number lies between them.",
            "Give a min that is not greater than max, or leave one of them out.",
        ));
    }
    Ok(())
}
