//! The databases of the server: names, encoding, and does a command want one for itself?

use std::ffi::CStr;

use pgrx::pg_sys;

use super::{own_transaction, process};

/// A database is marked so by a DROP DATABASE that was interrupted. It takes no connections.
const INVALID: i32 = -2;

/// The databases that take connections, and are no templates: OID and name. Read by a scan, in a
/// transaction of its own, because a process that is connected to no database can't use SQL.
pub fn open_ones() -> Vec<(pg_sys::Oid, String)> {
    own_transaction::run_without_snapshot(|| {
        let mut found = Vec::new();
        // SAFETY: pg_database is a shared catalogue, whose rows begin with FormData_pg_database;
        // the scan is ended on the way that returns, and with the transaction on an ERROR.
        unsafe {
            let lock = pg_sys::AccessShareLock as i32;
            let table = pg_sys::table_open(pg_sys::DatabaseRelationId, lock);
            let scan = pg_sys::table_beginscan_catalog(table, 0, std::ptr::null_mut());
            loop {
                let tuple = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
                if tuple.is_null() {
                    break;
                }
                let database = &*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_database>();
                let connects = database.datallowconn && database.datconnlimit != INVALID;
                if connects && !database.datistemplate {
                    let name = CStr::from_ptr(database.datname.data.as_ptr()).to_string_lossy();
                    found.push((database.oid, name.into_owned()));
                }
            }
            pg_sys::heap_endscan(scan);
            pg_sys::table_close(table, lock);
        }
        found
    })
}

/// The name of the database that this process is connected to, as it is now; None if it is gone.
pub fn own_name() -> Option<String> {
    // SAFETY: a look-up in the catalogue, in a transaction; the name is a copy.
    unsafe {
        let name = pg_sys::get_database_name(process::database());
        (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
    }
}

/// Whether texts in this process's database are UTF-8.
#[inline]
pub fn is_utf8() -> bool {
    // SAFETY: reads the backend's memory.
    unsafe { pg_sys::GetDatabaseEncoding() == pg_sys::pg_enc::PG_UTF8 as i32 }
}

/// The name of the encoding of this process's database.
pub fn encoding() -> String {
    // SAFETY: the name is a constant of PostgreSQL.
    let name = unsafe { CStr::from_ptr(pg_sys::GetDatabaseEncodingName()) };
    name.to_string_lossy().into_owned()
}

/// Whether a command that drops or copies the database waits for other sessions to leave it. Such a
/// command holds a lock on the database that a new connection would wait for.
pub fn is_wanted_alone(database: pg_sys::Oid) -> bool {
    let tag = pg_sys::LOCKTAG {
        locktag_field2: pg_sys::DatabaseRelationId.to_u32(),
        locktag_field3: database.to_u32(),
        locktag_type: pg_sys::LockTagType::LOCKTAG_OBJECT as u8,
        locktag_lockmethodid: pg_sys::DEFAULT_LOCKMETHOD as u8,
        ..Default::default()
    };
    let mode = pg_sys::RowExclusiveLock as i32;
    // SAFETY: a session-level lock that is given back at once.
    unsafe {
        let got = pg_sys::LockAcquire(&tag, mode, true, true);
        if got == pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL {
            return true;
        }
        pg_sys::LockRelease(&tag, mode, true);
    }
    false
}
