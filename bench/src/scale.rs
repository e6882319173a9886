//! The size of a run.

use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Rounds of A B A B. The median of the rounds is reported, with the smallest and the largest.
    pub rounds: usize,
    /// The length of one measurement.
    pub duration: Duration,
    /// The largest backlog from which a measurement consumes single messages.
    pub singles: u64,
    /// The largest backlog from which a measurement consumes batches of 100.
    pub batches: u64,
    /// Partitions that are drained before scenario 8.
    pub drained_partitions: u64,
    /// Messages in the partition that scenario 8 blocks.
    pub blocked_backlog: u64,
    /// Pops for a latency, in tens.
    pub latency_rounds: usize,
    /// The time of scenario 7 without the snapshot, and then with it.
    pub before_snapshot: Duration,
    pub with_snapshot: Duration,
    /// The large backlog of scenario 10.
    pub big_backlog: u64,
    /// Cycles of scenario 11 with batches of 1; a tenth of it with batches of 100.
    pub wal_cycles: u64,
    /// How long scenario 12 pushes.
    pub wakeup_seconds: u64,
    /// How long scenario 13 runs.
    pub steady: Duration,
    /// How many sessions wait in scenario 17, and for how long it pushes to them.
    pub waiting_sessions: &'static [usize],
    pub waiting_time: Duration,
    /// How long scenario 20 looks at an idle worker, each time.
    pub idle: Duration,
    /// Messages of each part of scenario 22, and how long one may take.
    pub hour_part: u64,
    pub longest_part: Duration,
}

impl Scale {
    /// About 8 minutes.
    pub fn quick() -> Self {
        Self {
            rounds: 2,
            duration: Duration::from_millis(400),
            singles: 6_000,
            batches: 100_000,
            drained_partitions: 20_000,
            blocked_backlog: 100_000,
            latency_rounds: 20,
            before_snapshot: Duration::from_secs(2),
            with_snapshot: Duration::from_secs(6),
            big_backlog: 500_000,
            wal_cycles: 500,
            wakeup_seconds: 3,
            steady: Duration::from_secs(10),
            waiting_sessions: &[4, 16, 60],
            waiting_time: Duration::from_millis(1500),
            idle: Duration::from_secs(5),
            hour_part: 5_000,
            longest_part: Duration::from_secs(60),
        }
    }

    /// About an hour.
    pub fn full() -> Self {
        Self {
            rounds: 5,
            duration: Duration::from_millis(1500),
            singles: 20_000,
            batches: 1_000_000,
            drained_partitions: 100_000,
            blocked_backlog: 1_000_000,
            latency_rounds: 100,
            before_snapshot: Duration::from_secs(15),
            with_snapshot: Duration::from_secs(45),
            big_backlog: 10_000_000,
            wal_cycles: 5_000,
            wakeup_seconds: 15,
            steady: Duration::from_secs(120),
            waiting_sessions: &[4, 16, 60, 256],
            waiting_time: Duration::from_secs(4),
            idle: Duration::from_secs(30),
            hour_part: 30_000,
            longest_part: Duration::from_secs(120),
        }
    }
}
