//! Which rows of a table a snapshot shows, found out again by reading only the pages that have
//! changed since the last time.
//!
//! PostgreSQL stamps a page of a logged table with the place in the log (the *LSN*) of its last
//! change, and no two changes have one stamp. So a page with the stamp of the last reading has the
//! rows of the last reading. Which of them are visible may still have changed, where a transaction
//! that wrote or deleted one was running: such a page is read again. If none was, the page is
//! *final*: what it shows, it shows to every later snapshot, as long as the stamp stays.
//!
//! The stamp is read after the snapshot was taken. A change that is on its way at that moment is of
//! a transaction that the snapshot does not show.

use pgrx::pg_sys;

use super::allocator;
use super::heap_page::{FileName, HeapPages, RowVersion, count_pages, file_of};
use super::relation::{self, READ};
use super::scan::Tuple;
use super::snapshot::ActiveSnapshot;
use super::table::Table;
use crate::error::Result;

/// What is remembered of the rows of a table: an `R` of each that is of interest.
pub struct PageWatch<R> {
    /// The file of the table; None: nothing was read yet.
    file: Option<FileName>,
    pages: Vec<WatchedPage<R>>,
}

struct WatchedPage<R> {
    stamp: pg_sys::XLogRecPtr,
    is_final: bool,
    /// In the order of their offsets.
    rows: Vec<WatchedRow<R>>,
}

#[derive(Clone, Copy)]
struct WatchedRow<R> {
    version: RowVersion,
    row: R,
}

/// Hears how the visible rows differ from those of the last reading.
pub trait RowVisitor<R> {
    /// This row is visible, and was not. What to remember of it; None: it is of no interest, and
    /// may be shown again.
    fn came(&mut self, row: &Tuple) -> Result<Option<R>>;

    /// This row was visible, and is not any more.
    fn went(&mut self, row: R);
}

/// Whether pages of the table carry stamps: it is an ordinary logged table.
pub fn is_watchable(table: &'static Table) -> bool {
    // SAFETY: the relation is open while it is read.
    unsafe {
        let opened = relation::open(table, READ);
        let class = &*(*opened.relation).rd_rel;
        let is_watchable = class.relam == pg_sys::HEAP_TABLE_AM_OID
            && class.relpersistence as u8 == pg_sys::RELPERSISTENCE_PERMANENT;
        opened.close();
        is_watchable
    }
}

/// How many pages the table has.
pub fn pages_of(table: &'static Table) -> usize {
    // SAFETY: as above.
    unsafe {
        let opened = relation::open(table, READ);
        let count = count_pages(&opened);
        opened.close();
        count as usize
    }
}

impl<R: Copy> PageWatch<R> {
    pub fn new() -> Self {
        Self { file: None, pages: Vec::new() }
    }

    /// All pages are read at the next reading, whether they have changed or not: rows that were of
    /// no interest may be of interest now.
    pub fn read_all_again(&mut self) {
        self.pages.iter_mut().for_each(|page| page.is_final = false);
    }

    /// How many rows and pages are remembered.
    pub fn size(&self) -> usize {
        self.pages.len() + self.pages.iter().map(|page| page.rows.len()).sum::<usize>()
    }

    /// Tell `visitor` how the rows that `under` shows differ from those of the last reading. Either
    /// there was none, or `under` shows all that was shown then, and in neither transaction has the
    /// session written anything before. False: the table is in another file now, and nothing that
    /// was told holds.
    pub fn read(
        &mut self,
        table: &'static Table,
        under: &ActiveSnapshot,
        visitor: &mut impl RowVisitor<R>,
    ) -> Result<bool> {
        // SAFETY: the table is open as long as its pages are read. On an ERROR the transaction's
        // resource owner closes it, and lets go of the slot's page.
        unsafe {
            let opened = relation::open(table, READ);
            let file = file_of(&opened);
            if *self.file.get_or_insert(file) != file {
                opened.close();
                return Ok(false);
            }
            let reading = HeapPages::begin(table, opened);
            let result = self.read_pages(&reading, under, visitor);
            reading.end();
            result.map(|()| true)
        }
    }

    /// # Safety
    /// The table is open.
    unsafe fn read_pages(
        &mut self,
        reading: &HeapPages,
        under: &ActiveSnapshot,
        visitor: &mut impl RowVisitor<R>,
    ) -> Result<()> {
        // SAFETY: the table is open, so its pages can be read. A page may be added at any time, by
        // a transaction that the snapshot does not show.
        let count = unsafe { reading.count() };
        for gone in self.pages.drain(self.pages.len().min(count as usize)..) {
            gone.rows.into_iter().for_each(|gone| visitor.went(gone.row));
        }
        for number in 0..count {
            if self.pages.len() <= number as usize {
                self.pages.push(WatchedPage { stamp: 0, is_final: false, rows: Vec::new() });
            }
            let page = &mut self.pages[number as usize];
            // SAFETY: as above.
            let buffer = unsafe { reading.pin(number) };
            // SAFETY: the page is pinned up to here.
            let result = unsafe {
                match page.is_final && pg_sys::BufferGetLSNAtomic(buffer) == page.stamp {
                    true => Ok(()),
                    false => page.read(reading, number, buffer, under, visitor),
                }
            };
            // SAFETY: it was pinned above.
            unsafe { pg_sys::ReleaseBuffer(buffer) };
            result?;
            allocator::check();
            pgrx::check_for_interrupts!();
        }
        Ok(())
    }
}

impl<R: Copy> WatchedPage<R> {
    /// # Safety
    /// The page is pinned.
    unsafe fn read(
        &mut self,
        reading: &HeapPages,
        number: u32,
        buffer: pg_sys::Buffer,
        under: &ActiveSnapshot,
        visitor: &mut impl RowVisitor<R>,
    ) -> Result<()> {
        // SAFETY: as above.
        let seen = unsafe { reading.look(number, buffer, under) };
        (self.stamp, self.is_final) = (seen.stamp, seen.is_final);
        let mut before = std::mem::take(&mut self.rows).into_iter().peekable();
        for version in seen.visible {
            while let Some(gone) = before.next_if(|old| old.version < version) {
                visitor.went(gone.row);
            }
            if let Some(known) = before.next_if(|old| old.version == version) {
                self.rows.push(known);
                continue;
            }
            // SAFETY: as above. A row that an active snapshot shows stays where it is while its
            // page is pinned.
            let tuple = unsafe { reading.show(number, version.offset, buffer) };
            if let Some(row) = visitor.came(tuple)? {
                self.rows.push(WatchedRow { version, row });
            }
        }
        before.for_each(|gone| visitor.went(gone.row));
        self.rows.shrink_to_fit();
        Ok(())
    }
}
