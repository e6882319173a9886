//! Counters that committed transactions raise. They are in shared memory, so they are there only
//! with the library preloaded. Without, nothing here does anything.
//!
//! Each database has counters under keys, a few under each. What a transaction counts is noted in
//! its session, and added when it commits: no row is written. A rollback, also of a subtransaction,
//! takes its notes with it. A prepared transaction counts when it is prepared, because its commit
//! may come in a process that knows nothing of it.
//!
//! When the server starts, also after a crash, all counters are 0. A key that comes when its part
//! of the memory is full takes the place of the one that was not raised for longest, which begins
//! at 0 again when it comes back.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use pgrx::{pg_guard, pg_sys};

use super::shared::{Shared, plain};
use super::{process, recovery, subtransaction};

/// Counters under one key.
pub const COUNTERS: usize = 6;
/// A key has its place in one of so many parts, each of which has room for so many keys.
const PARTS: usize = 512;
const ROOM: usize = 8;
/// Notes of one transaction that are compared with a new one, to be one note with it.
const COMPARED: usize = 64;

/// A database and a key in it; a key of 0 is none.
type CounterKey = (u32, i64);

struct Counted {
    place: CounterKey,
    /// Counts the commits that have raised a counter of this part.
    raised_at: AtomicU64,
    counts: [AtomicU64; COUNTERS],
}

plain!(Counted { place, raised_at, counts });

impl Counted {
    const fn of(place: CounterKey, raised_at: u64) -> Self {
        Self {
            place,
            raised_at: AtomicU64::new(raised_at),
            counts: [const { AtomicU64::new(0) }; COUNTERS],
        }
    }
}

struct Part {
    commits: AtomicU64,
    counted: [Counted; ROOM],
}

plain!(Part { commits, counted });

impl Part {
    const fn empty() -> Self {
        Self { commits: AtomicU64::new(0), counted: [const { Counted::of((0, 0), 0) }; ROOM] }
    }

    fn find(&self, place: CounterKey) -> Option<&Counted> {
        self.counted.iter().find(|counted| counted.place == place)
    }

    /// Add to the counters of a key; false where it has none.
    fn add(&self, place: CounterKey, counts: &[u64; COUNTERS]) -> bool {
        let Some(counted) = self.find(place) else { return false };
        let commit = self.commits.fetch_add(1, Ordering::Relaxed) + 1;
        counted.raised_at.fetch_max(commit, Ordering::Relaxed);
        for (counter, count) in counted.counts.iter().zip(counts) {
            counter.fetch_add(*count, Ordering::Relaxed);
        }
        true
    }

    /// Make room for a key that has no counters.
    fn make_room(&mut self, place: CounterKey) {
        let raised_at = |counted: &&mut Counted| counted.raised_at.load(Ordering::Relaxed);
        if let Some(last) = self.counted.iter_mut().min_by_key(raised_at) {
            *last = Counted::of(place, 0);
        }
    }
}

struct Counters {
    parts: [Part; PARTS],
}

plain!(Counters { parts });

impl Counters {
    fn number(place: CounterKey) -> usize {
        let mixed = (place.1 as u64 ^ u64::from(place.0) << 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> 32) as usize % PARTS
    }
}

static SHARED: Shared<Counters> =
    Shared::new(c"queen_mq counters", || Counters { parts: [const { Part::empty() }; PARTS] });

/// Called by `_PG_init`: in the postmaster, have shared memory for the counters.
pub fn register() {
    SHARED.set_up();
}

/// What a subtransaction has counted under a key. Subtransactions are numbered in the order in
/// which they begin.
#[derive(Clone, Copy)]
struct Note {
    begun: pg_sys::SubTransactionId,
    key: i64,
    counts: [u64; COUNTERS],
}

thread_local! {
    /// Callbacks that this process has registered.
    static REGISTERED: Cell<usize> = const { Cell::new(0) };
    static NOTES: RefCell<Vec<Note>> = const { RefCell::new(Vec::new()) };
}

/// Let the commit of the open transaction raise a counter under this key.
pub fn count(key: i64, counter: usize, by: usize) {
    if by == 0 || !SHARED.is_there() {
        return;
    }
    call_back_at_end();
    let begun = subtransaction::number();
    let mut counts = [0; COUNTERS];
    counts[counter] = by as u64;
    NOTES.with_borrow_mut(|notes| add(notes, Note { begun, key, counts }));
}

fn add(notes: &mut Vec<Note>, new: Note) {
    if !join(notes, &new) {
        notes.push(new);
    }
}

/// Make the note one with another that is like it; false where there is none.
fn join(notes: &mut [Note], new: &Note) -> bool {
    let is_alike = |note: &&mut Note| note.begun == new.begun && note.key == new.key;
    let Some(note) = notes.iter_mut().rev().take(COMPARED).find(is_alike) else { return false };
    note.counts.iter_mut().zip(new.counts).for_each(|(sum, by)| *sum += by);
    true
}

/// The notes from `first` on are those of this subtransaction now. Allocates nothing.
fn hand_over(notes: &mut Vec<Note>, first: usize, to: pg_sys::SubTransactionId) {
    let mut end = first;
    for at in first..notes.len() {
        let note = Note { begun: to, ..notes[at] };
        if !join(&mut notes[..end], &note) {
            notes[end] = note;
            end += 1;
        }
    }
    notes.truncate(end);
}

/// The counters under a key of this database. None without preload, and on a standby, where nothing
/// is counted.
pub fn read(key: i64) -> Option<[u64; COUNTERS]> {
    if recovery::is_under_way() || !SHARED.is_there() {
        return None;
    }
    let place = (process::database().to_u32(), key);
    let shared = SHARED.share();
    let counted = shared.parts[Counters::number(place)].find(place);
    Some(counted.map_or([0; COUNTERS], |counted| {
        std::array::from_fn(|counter| counted.counts[counter].load(Ordering::Relaxed))
    }))
}

fn call_back_at_end() {
    // Each may fail for want of memory. What is registered once is not registered again.
    let register: [unsafe fn(); 2] = [register_end, register_subtransaction];
    while let Some(next) = register.get(REGISTERED.get()) {
        // SAFETY: called once for this process; the callbacks are functions of this library, which
        // stays loaded.
        unsafe { next() };
        REGISTERED.set(REGISTERED.get() + 1);
    }
}

unsafe fn register_end() {
    // SAFETY: see `call_back_at_end`.
    unsafe { pg_sys::RegisterXactCallback(Some(at_end), std::ptr::null_mut()) }
}

unsafe fn register_subtransaction() {
    // SAFETY: see `call_back_at_end`.
    unsafe { pg_sys::RegisterSubXactCallback(Some(at_subtransaction), std::ptr::null_mut()) }
}

/// Nothing here may fail.
#[pg_guard]
unsafe extern "C-unwind" fn at_end(event: pg_sys::XactEvent::Type, _argument: *mut c_void) {
    use pg_sys::XactEvent::{XACT_EVENT_ABORT, XACT_EVENT_COMMIT, XACT_EVENT_PREPARE};
    match event {
        XACT_EVENT_COMMIT | XACT_EVENT_PREPARE => raise(&NOTES.take()),
        XACT_EVENT_ABORT => drop(NOTES.take()),
        _ => (),
    }
}

fn raise(notes: &[Note]) {
    if notes.is_empty() {
        return;
    }
    let database = process::database().to_u32();
    let mut left: Option<usize> = None;
    {
        let shared = SHARED.share();
        for (at, Note { key, counts, .. }) in notes.iter().enumerate() {
            let place = (database, *key);
            if !shared.parts[Counters::number(place)].add(place, counts) {
                left = Some(at);
                break;
            }
        }
    }
    let Some(left) = left else { return };
    let mut shared = SHARED.exclusive();
    for Note { key, counts, .. } in &notes[left..] {
        let place = (database, *key);
        let part = &mut shared.parts[Counters::number(place)];
        if !part.add(place, counts) {
            part.make_room(place);
            part.add(place, counts);
        }
    }
}

/// A subtransaction that is rolled back takes its notes with it, and those of all that began in it.
/// One that ends well leaves them to the one around it.
#[pg_guard]
unsafe extern "C-unwind" fn at_subtransaction(
    event: pg_sys::SubXactEvent::Type,
    own: pg_sys::SubTransactionId,
    parent: pg_sys::SubTransactionId,
    _argument: *mut c_void,
) {
    use pg_sys::SubXactEvent::{SUBXACT_EVENT_ABORT_SUB, SUBXACT_EVENT_COMMIT_SUB};
    NOTES.with_borrow_mut(|notes| {
        // They are in the order in which their subtransactions began.
        let first = notes.iter().rposition(|note| note.begun < own).map_or(0, |at| at + 1);
        if first == notes.len() {
            return;
        }
        match event {
            SUBXACT_EVENT_ABORT_SUB => notes.truncate(first),
            SUBXACT_EVENT_COMMIT_SUB => hand_over(notes, first, parent),
            _ => (),
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(begun: u32, key: i64, by: u64) -> Note {
        Note { begun, key, counts: [by, 0, 0, 0, 0, 1] }
    }

    #[test]
    fn notes_of_a_subtransaction_that_ends_are_one_with_those_around_it() {
        let mut notes = Vec::new();
        for new in [note(1, 7, 1), note(1, 8, 2), note(1, 7, 4)] {
            add(&mut notes, new);
        }
        for round in 0..1000 {
            for key in [7, 8, 9] {
                add(&mut notes, note(2 + round, key, 10));
            }
            let first = notes.len() - 3;
            hand_over(&mut notes, first, 1);
        }
        let sums: Vec<_> = notes.iter().map(|note| (note.key, note.counts)).collect();
        let sum = |by, times| [by, 0, 0, 0, 0, times];
        let expected = [(7, sum(10_005, 1002)), (8, sum(10_002, 1001)), (9, sum(10_000, 1000))];
        assert_eq!(sums, expected);
    }

    #[test]
    fn what_was_not_raised_for_longest_makes_room() {
        let mut part = Part::empty();
        let one = |counter: usize| std::array::from_fn(|at| u64::from(at == counter));
        for key in 1..=ROOM as i64 {
            assert!(!part.add((5, key), &one(0)));
            part.make_room((5, key));
            assert!(part.add((5, key), &one(0)));
        }
        assert!(part.add((5, 1), &one(1)));
        part.make_room((6, 1));
        assert!(part.find((5, 1)).is_some() && part.find((5, 2)).is_none());
        let counts = &part.find((5, 1)).unwrap().counts;
        assert_eq!([counts[0].load(Ordering::Relaxed), counts[1].load(Ordering::Relaxed)], [1, 1]);
    }
}
