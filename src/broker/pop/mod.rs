//! Pop: give a consumer messages, under a lease.
//!
//! A pop takes one snapshot and reads everything under it. It asks [`search`] for partitions that
//! may have work and tries them one by one. A try first reads, without a lock, what the partition
//! has for the group. Only if there is something does it lock, write the next state, and deliver.
//! So a pop that finds nothing writes nothing.
//!
//! | file | its question |
//! |---|---|
//! | [`request`] | a call of `queen_pop` or `queen_pop_any`: register, wait and look again |
//! | [`registrations`] | find queue and group; in which queues does a call register the group |
//! | [`ready`] | a call of `queen_wait`: is there something to pop |
//! | [`look_again`] | the wait between two looks, which both calls share |
//! | [`notices`] | what a client is told of a first step that went another way than was meant |
//! | [`context`] | what the pop knows before it tries a partition, and its reads of the log |
//! | [`search`] | which partitions to try |
//! | [`ordered`] | a try in a group with order: one consumer at a time has the partition |
//! | [`unordered`] | a try in a group without order: consumers share it, message by message |
//! | [`run`] | what both write: the next state, the lease, the list of deliveries |
//! | [`delivery`] | a message on its way to the caller |
//!
//! A pop waits for no lock. What another transaction has locked is passed by: a partition, a
//! message, a timer, the registration of the group. Where the pop creates a cursor or a claim, it
//! holds shares of `first_reads` of the queue and of the group ([`crate::store::locks`]); elsewhere
//! the row of the cursor or the claim. It keeps these to the end of the transaction.

mod context;
mod delivery;
mod look_again;
mod notices;
mod ordered;
pub mod ready;
mod registrations;
pub mod request;
mod run;
mod search;
mod unordered;

use queen_engine::discovery::Discovery;

use self::context::PopContext;
pub use self::context::PopLimits;
pub use self::delivery::{Delivery, Unpacking};
use self::ordered::OrderedPop;
use self::run::{PartitionPop, PopResult, PopRun};
use self::search::{PartitionResult, Search};
use self::unordered::UnorderedPop;
use crate::error::Result;
use crate::pg::clock::{self, Moment};
use crate::pg::random::random;
use crate::pg::result_context::ResultContext;
use crate::pg::snapshot::{ActiveSnapshot, one_snapshot_per_transaction};
use crate::store::group::Group;
use crate::store::queue::Queue;
use crate::wait::fresh::Hints;
use crate::wait::waiters::Topic;

/// Pop under one new snapshot. `discovery`: the newest state of the group's search, with its
/// revision.
fn pop_once(
    limits: &PopLimits<'_>,
    queue: &Queue,
    group: &Group,
    discovery: &(i64, Discovery),
    results: ResultContext,
) -> Result<PopResult> {
    let now = clock::now();
    let hints = hints_for(limits, queue, group, &discovery.1, now);
    ActiveSnapshot::new_snapshot(|under| {
        let context = PopContext::new(limits, queue, group, discovery, now, under);
        match group.is_ordered(&queue.options) {
            true => pop_by::<OrderedPop>(&context, hints, results),
            false => pop_by::<UnorderedPop>(&context, hints, results),
        }
    })
}

/// One in this many pops searches first, and so finds what no hint is about.
const SEARCH_EVERY: u64 = 64;
/// Hints that a pop tries at most before it searches.
const MOST_HINTS: usize = 8;

/// Partitions that were pushed to, for the pop to try first. None in REPEATABLE READ, where the
/// snapshot may be older than they are, and none where the clock was set back since the last
/// search: the pop searches, and writes that down.
fn hints_for(
    limits: &PopLimits<'_>,
    queue: &Queue,
    group: &Group,
    discovery: &Discovery,
    now: Moment,
) -> Option<Hints> {
    let searches_first = limits.partition.is_some()
        || discovery.due_from(now) != discovery.due
        || queue.options.delay() > 0
        || one_snapshot_per_transaction()
        || random().is_multiple_of(SEARCH_EVERY);
    match searches_first {
        true => None,
        false => Hints::before_snapshot(Topic::queue(&queue.name), Topic::group(group.id), now),
    }
}

fn pop_by<P: PartitionPop>(
    context: &PopContext<'_>,
    hints: Option<Hints>,
    results: ResultContext,
) -> Result<PopResult> {
    let mut run = PopRun::new(context, P::locks_one_row(context.limits), results);
    let mut partitions = P::default();
    if let Some(partition) = context.limits.partition {
        let result = partitions.pop_from(&mut run, partition)?;
        run.note(partition, &result);
    }
    let mut tried = Vec::new();
    if let Some(hints) = hints {
        tried = follow(&hints, &mut partitions, &mut run)?;
        if run.is_over() {
            return Ok(run.finish());
        }
    }
    // In a partition that the caller has named, the search may know of claims.
    if context.limits.partition.is_none() || !P::ONE_TRY_IS_ALL {
        search_and_pop(tried, &mut partitions, &mut run)?;
    }
    Ok(run.finish())
}

/// A partition that a hint was about, and what the try of it came to.
type Tried = (String, PartitionResult);

/// Try the partitions of hints, as long as the pop wants messages.
fn follow<P: PartitionPop>(
    hints: &Hints,
    partitions: &mut P,
    run: &mut PopRun<'_>,
) -> Result<Vec<Tried>> {
    let mut tried: Vec<Tried> = Vec::new();
    while tried.len() < MOST_HINTS && !run.is_over() && !run.has_all_partitions() {
        let Some(name) = hints.next() else { break };
        if run.may_pop_from(&name) && tried.iter().all(|(known, _)| *known != name) {
            let result = partitions.pop_from(run, &name)?;
            run.note(&name, &result);
            tried.push((name, result));
        }
    }
    Ok(tried)
}

fn search_and_pop<P: PartitionPop>(
    tried: Vec<Tried>,
    partitions: &mut P,
    run: &mut PopRun<'_>,
) -> Result<()> {
    let mut search = Search::open(run.context);
    tried.into_iter().for_each(|(name, result)| search.skip(name, &result));
    while !is_done::<P>(run) {
        let names = search.next(run.has_all_partitions(), |name| run.may_pop_from(name))?;
        if names.is_empty() {
            break;
        }
        for name in names {
            if is_done::<P>(run) {
                break;
            }
            if run.may_pop_from(&name) {
                let result = partitions.pop_from(run, &name)?;
                run.note(&name, &result);
                search.resolve(&name, &result);
            }
        }
    }
    if let Some(name) = search.untried() {
        run.leave(name);
    }
    if search.is_far_behind() && run.has_popped_old() {
        Hints::pause(Topic::group(run.context.group.id), run.context.now);
    }
    search.close(run.has_written());
    Ok(())
}

fn is_done<P: PartitionPop>(run: &PopRun<'_>) -> bool {
    run.is_over() || (P::ONE_TRY_IS_ALL && run.has_all_partitions())
}

impl PartitionResult {
    /// The answer of a peek where there are messages: it has popped none of them.
    const FOUND: Self = Self::Popped;
}

/// What a pop of one message would come to.
#[derive(Default)]
struct Peek {
    is_any_there: bool,
    /// Another transaction has messages locked, and may give them back.
    met_lock: bool,
}

/// Look whether a pop of one message would find one. Writes nothing, and waits for no lock.
fn peek(
    queue: &Queue,
    group: &Group,
    discovery: &(i64, Discovery),
    under: &ActiveSnapshot,
) -> Result<Peek> {
    let context = PopContext::new(&PopLimits::ONE, queue, group, discovery, clock::now(), under);
    match group.is_ordered(&queue.options) {
        true => peek_by::<OrderedPop>(&context),
        false => peek_by::<UnorderedPop>(&context),
    }
}

fn peek_by<P: PartitionPop>(context: &PopContext<'_>) -> Result<Peek> {
    let mut search = Search::open(context);
    let mut peek = Peek::default();
    while !peek.is_any_there {
        let names = search.next(false, |_| true)?;
        if names.is_empty() {
            break;
        }
        for name in names {
            let result = P::peek(context, &name)?;
            peek.met_lock |= matches!(result, PartitionResult::Locked);
            peek.is_any_there = result.has_messages();
            if peek.is_any_there {
                break;
            }
            search.resolve(&name, &result);
        }
    }
    search.close(false);
    Ok(peek)
}
