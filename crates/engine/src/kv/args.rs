//! Arguments of the marker functions: what is accepted, and what it comes to.

use super::NotApplied;

/// Microseconds since 2000-01-01 00:00 UTC: PostgreSQL's timestamptz.
pub type Micros = i64;

/// A namespace is `^[a-z0-9][a-z0-9._-]{0,63}$`.
pub const MAX_NS_BYTES: usize = 64;
/// Small enough that namespace and key always fit an index entry.
pub const MAX_KEY_BYTES: usize = 512;
/// Bytes of the jsonb value as stored, uncompressed.
pub const MAX_VALUE_BYTES: usize = 64 * 1024;
/// Rows that one `queen_kv_list` may return.
pub const MAX_LIST_ROWS: i32 = 1000;

const DAY: i128 = 86_400_000_000;
/// 4714-11-24 BC and 294277-01-01 AD, the first moments inside and outside timestamptz.
const FIRST_TIME: i128 = -211_813_488_000_000_000;
const END_OF_TIME: i128 = 9_223_371_331_200_000_000;

/// A refused argument (22023): the message names it, the detail says what came, the hint what is
/// accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    pub message: String,
    pub detail: String,
    pub hint: &'static str,
}

impl Invalid {
    pub fn new(
        message: impl Into<String>,
        detail: impl Into<String>,
        hint: &'static str,
    ) -> Invalid {
        Invalid { message: message.into(), detail: detail.into(), hint }
    }
}

/// The name of a marker, checked. Ordered as markers are locked: (ns, key) by bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name<'a> {
    ns: &'a str,
    key: &'a str,
}

impl<'a> Name<'a> {
    pub fn new(ns: &'a str, key: &'a str) -> Result<Self, Invalid> {
        check_ns(ns)?;
        check_key(key)?;
        Ok(Name { ns, key })
    }

    pub fn ns(&self) -> &'a str {
        self.ns
    }

    pub fn key(&self) -> &'a str {
        self.key
    }
}

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
    // An endless name would make an endless error message.
    let shown: String = ns.chars().take(MAX_NS_BYTES + 1).collect();
    Err(Invalid::new(
        format!("invalid marker namespace \"{shown}\""),
        format!("The namespace has {} bytes.", ns.len()),
        "A namespace is 1 to 64 characters a-z, 0-9, dot, underscore or hyphen, and begins with a \
         letter or digit.",
    ))
}

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

/// The size is that of the jsonb value as stored.
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

/// What a write requires of the marker it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    Anything,
    /// `expect => 0`
    Absent,
    /// Exactly this version; never creates.
    Version(i64),
}

impl Expect {
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

    /// None: fulfilled by the live marker of this version, or by there being none.
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

/// An interval, as PostgreSQL keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ttl {
    pub months: i32,
    pub days: i32,
    pub micros: i64,
}

impl Ttl {
    /// PostgreSQL's measure for comparing intervals: a month is 30 days, a day 24 hours.
    fn span(self) -> i128 {
        (i128::from(self.months) * 30 + i128::from(self.days)) * DAY + i128::from(self.micros)
    }

    /// Whether PostgreSQL can add it to `now`, which it does months first, then days, then the
    /// rest, each result within timestamptz. Months and days are estimated with a margin: 4800
    /// months are 146,097 days, any run of months is within 62 days of that ratio, and clock
    /// changes move a day by less than another.
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
            "ttl is an interval greater than zero, or say forever => true.",
        )
    }
}

/// When a marker written now expires; None is never. Exactly one of `ttl` and `forever` is said.
///
/// `add` is PostgreSQL's `now + interval`, which knows calendar and time zone; it is called only
/// where it can't fail.
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
            let said = if ttl.is_some() { "Both were said." } else { "Neither was said." };
            return Err(Invalid::new(
                "a marker needs exactly one of ttl and forever",
                said,
                "Say ttl => an interval, or forever => true.",
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
    // '1 month -30 days' and its like: longer than nothing, or not, as the calendar has it.
    if expires_at <= now {
        return Err(ttl.refused("The ttl ends before it begins"));
    }
    Ok(Some(expires_at))
}

/// The keys that begin with `prefix` and come after `after`, as `lower <= key < upper` by bytes.
///
/// UTF-8 sorts by bytes as by code points, so the strings with a prefix are those from it up to
/// the one with the last character raised by one. No text contains the zero byte, so `after` and
/// U+0001 is the first string beyond `after`.
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
    // Longer than a key can be, in the highest character there is.
    (lower, String::from(char::MAX).repeat(MAX_KEY_BYTES / 4 + 1))
}

/// What `incr` needs of a number; PostgreSQL's numeric is one, so is i64 in the tests.
pub trait Number: Clone + PartialOrd {
    /// Finite, and so small that the sum of two such numbers exists.
    fn is_usable(&self) -> bool;
    /// The exact sum of two usable numbers.
    fn plus(&self, other: &Self) -> Self;
}

/// The arguments of an `incr`.
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
