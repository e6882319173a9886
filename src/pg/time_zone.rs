//! Time zones, as PostgreSQL knows them.

use std::ffi::CString;

use pgrx::pg_sys;

/// A time zone. It lives as long as the session, which remembers each that it has used.
#[derive(Clone, Copy, Debug)]
pub struct TimeZone(*const pg_sys::pg_tz);

/// What is added to seconds since 2000-01-01 to make them seconds since 1970-01-01.
const EPOCH: i64 = 946_684_800;

impl TimeZone {
    /// The zone of this name, as the setting TimeZone takes it: a name of `pg_timezone_names`, in
    /// whatever case, or a rule in the manner of POSIX. None: there is no such zone. A number is no
    /// name: the setting counts it to the east, and POSIX to the west.
    pub fn named(name: &str) -> Option<Self> {
        if name.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first)) {
            return None;
        }
        let name = CString::new(name).ok()?;
        // SAFETY: a C string, which is copied. What it returns is never freed.
        let zone = unsafe { pg_sys::pg_tzset(name.as_ptr()) };
        // PostgreSQL counts no leap seconds, and takes no zone that does.
        // SAFETY: a zone.
        let is_good = !zone.is_null() && unsafe { pg_sys::pg_tz_acceptable(zone) };
        is_good.then_some(Self(zone))
    }

    /// How many seconds the clock of this zone is ahead of UTC at a moment, and the next moment at
    /// which that changes; None: never. Moments are seconds since 2000-01-01 in UTC.
    pub fn offset_at(self, second: i64) -> (i64, Option<i64>) {
        let time: pg_sys::pg_time_t = second.saturating_add(EPOCH);
        let (mut before, mut after, mut boundary) = (0, 0, 0);
        let (mut is_summer_before, mut is_summer_after) = (0, 0);
        // SAFETY: the zone is there as long as the session, and each pointer lives across the call.
        let found = unsafe {
            pg_sys::pg_next_dst_boundary(
                &time,
                &mut before,
                &mut is_summer_before,
                &mut boundary,
                &mut after,
                &mut is_summer_after,
                self.0,
            )
        };
        (before, (found == 1).then(|| boundary - EPOCH))
    }
}
