//! How long a message waits for its next delivery after a failure.
//!
//! A message often fails because of what it needs: a server that is down, a row that is locked. A
//! delay that grows with each failure gives that time to recover; its bound keeps the message from
//! being forgotten.

/// The delay after failure number `failures`, which counts from 1: `delay` times `factor` for each
/// failure before this one, and no more than `max`. Times in microseconds.
pub fn retry_delay(delay: i64, factor: f64, max: i64, failures: u32) -> i64 {
    if delay == 0 {
        return 0; // The power may be infinite, and zero times that is no number.
    }
    let exponent = i32::try_from(failures.saturating_sub(1)).unwrap_or(i32::MAX);
    let wanted = delay as f64 * factor.powi(exponent);
    if wanted < max as f64 { wanted as i64 } else { max }
}

#[cfg(test)]
mod tests {
    use super::retry_delay;

    #[test]
    fn it_grows_by_the_factor_and_stops_at_the_cap() {
        let delays = [1, 2, 3, 4, 5].map(|n| retry_delay(1_000, 3.0, 20_000, n));
        assert_eq!(delays, [1_000, 3_000, 9_000, 20_000, 20_000]);
    }

    #[test]
    fn a_huge_number_of_failures_is_the_cap_and_no_delay_stays_none() {
        assert_eq!(retry_delay(1, 100.0, 3_600_000_000, u32::MAX), 3_600_000_000);
        assert_eq!(retry_delay(0, 100.0, 3_600_000_000, 7), 0);
        assert_eq!(retry_delay(0, 100.0, 3_600_000_000, u32::MAX), 0);
    }
}
