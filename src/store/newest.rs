//! The newest row of several that differ by their revision.
//!
//! An index page is read whole, as far as its rows meet the condition: for the newest of 128
//! revisions, all of them. So a session remembers the revision that it has met last, and asks for
//! revisions from there on. If there is none, what it remembers was rolled back, or is not visible
//! yet, or is about something that is gone; then it asks without a bound. The answer is the newest
//! row in either case: one below the bound is never newer than one above it.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::ptr;

use crate::error::Error;
use crate::pg::columns::Columns;
use crate::pg::key::{Key, Value};
use crate::pg::scan::{ScanEnd, Tuple};
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::table::{Column, Index};

/// A revision that was met.
#[derive(Clone, Copy)]
struct Met {
    index: *const Index,
    id: i64,
    revision: i64,
}

/// How many revisions a session remembers. Neighbouring ids of one index have places of their own.
const PLACES: usize = 1024;

thread_local! {
    /// Empty before the first look-up.
    static MET: RefCell<Vec<Met>> = const { RefCell::new(Vec::new()) };
}

fn place(index: &'static Index, id: i64) -> usize {
    let address = ptr::from_ref(index) as usize / size_of::<Index>();
    (id as usize).wrapping_add(address) % PLACES
}

/// The revision that was met last; 0: none is remembered.
fn met(index: &'static Index, id: i64) -> i64 {
    let remembered = MET.with_borrow(|all| all.get(place(index, id)).copied());
    remembered.filter(|met| ptr::eq(met.index, index) && met.id == id).map_or(0, |met| met.revision)
}

fn remember(index: &'static Index, id: i64, revision: i64) {
    MET.with_borrow_mut(|all| {
        all.resize(PLACES, Met { index: ptr::null(), id: 0, revision: 0 });
        all[place(index, id)] = Met { index, id, revision };
    });
}

/// The columns of an index on an id and a revision.
fn columns(index: &'static Index) -> (Column, Column) {
    match index.columns {
        [id, revision] => (*id, *revision),
        _ => Error::corrupt(format!("index {:?} is not of revisions", index.name)).raise(),
    }
}

/// Read the row of the highest revision of `id`; None if there is no row. `index` is on the id and
/// the revision.
pub fn newest<T>(
    index: &'static Index,
    id: i64,
    under: &ActiveSnapshot,
    read: impl Fn(&Tuple) -> T,
) -> Option<T> {
    let (id_column, revision) = columns(index);
    let find = |keys: &[(Column, Key<'_>)]| {
        index.scan(keys, ScanEnd::End, under, |row| {
            remember(index, id, row.need(revision));
            ControlFlow::Break(read(row))
        })
    };
    let of_id = (id_column, Key::Is(Value::Int(id)));
    let bounded = match met(index, id) {
        0 => None,
        met => find(&[of_id, (revision, Key::Above(Value::Int(met - 1)))]),
    };
    bounded.or_else(|| find(&[of_id]))
}

/// Whether the snapshot shows a revision of `id` above this one.
pub fn is_any_above(index: &'static Index, id: i64, revision: i64, under: &ActiveSnapshot) -> bool {
    let (id_column, revision_column) = columns(index);
    let of_id = (id_column, Key::Is(Value::Int(id)));
    let above = (revision_column, Key::Above(Value::Int(revision)));
    index.scan(&[of_id, above], ScanEnd::End, under, |_| ControlFlow::Break(())).is_some()
}
