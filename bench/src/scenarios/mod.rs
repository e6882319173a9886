//! The scenarios, by their numbers.

mod ack_and_pop;
mod backlog;
mod caught_up;
mod consume;
mod effect;
mod figures;
mod hour;
mod idle;
mod latency;
mod push;
mod remote;
mod segments;
mod sessions;
mod snapshot;
mod steady;
mod unordered;
mod waiting;
mod wakeups;
mod wal;

use anyhow::{Result, bail};

use crate::lab::Lab;
use crate::outcome::Outcome;

pub use self::consume::single_backlog;

/// Numbers stay as they are, so that runs of different versions can be compared. 15 is not used.
pub const ALL: [u8; 21] =
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 18, 19, 20, 21, 22];

/// Runs one scenario, in databases made for it.
pub async fn run(lab: &Lab, number: u8) -> Result<Outcome> {
    match number {
        1 => push::single(lab).await,
        2 => push::batches(lab).await,
        3 => consume::batches(lab).await,
        4 => consume::singles(lab).await,
        5 => sessions::run(lab).await,
        6 => effect::run(lab).await,
        7 => snapshot::run(lab).await,
        8 => latency::run(lab).await,
        9 => segments::run(lab).await,
        10 => backlog::run(lab).await,
        11 => wal::run(lab).await,
        12 => wakeups::run(lab).await,
        13 => steady::run(lab).await,
        14 => unordered::run(lab).await,
        16 => caught_up::run(lab).await,
        17 => waiting::run(lab).await,
        18 => ack_and_pop::run(lab).await,
        19 => remote::run(lab).await,
        20 => idle::run(lab).await,
        21 => figures::run(lab).await,
        22 => hour::run(lab).await,
        _ => bail!("there is no scenario {number}"),
    }
}
