//! Databases, as the launcher and the workers see them: which ones are to be served, and does a
//! command want one for itself?

use std::ffi::CStr;

use pgrx::pg_sys;

use crate::settings;

/// A database is marked so by a DROP DATABASE that was interrupted. It takes no connections.
const INVALID: i32 = -2;

/// A database that takes connections.
pub struct OpenDatabase {
    pub oid: pg_sys::Oid,
    pub name: String,
    /// The settings say that it is to be served.
    pub is_served: bool,
}

/// The databases that take connections. The launcher is connected to no database, so it can't use
/// SQL, and reads the catalogue by a scan.
pub fn all() -> Vec<OpenDatabase> {
    let mut found = Vec::new();
    // SAFETY: pg_database is a shared catalogue, whose rows begin with FormData_pg_database; scan
    // and transaction are ended on the way that returns, and with the process on an ERROR.
    unsafe {
        pg_sys::StartTransactionCommand();
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
                let (is_served, name) = (settings::serves(&name), name.into_owned());
                found.push(OpenDatabase { oid: database.oid, name, is_served });
            }
        }
        pg_sys::heap_endscan(scan);
        pg_sys::table_close(table, lock);
        pg_sys::CommitTransactionCommand();
    }
    found
}

/// Whether the extension is in the database of this process.
pub fn is_installed() -> bool {
    // SAFETY: a look-up in the catalogue, in a transaction.
    unsafe { pg_sys::get_extension_oid(c"queen_mq".as_ptr(), true) != pg_sys::InvalidOid }
}

/// Whether the settings say that the database of this process is to be served. They, and its name,
/// may have changed since the launcher looked.
pub fn is_served() -> bool {
    // SAFETY: a look-up in the catalogue, in a transaction; the name is a copy.
    unsafe {
        let name = pg_sys::get_database_name(pg_sys::MyDatabaseId);
        !name.is_null() && settings::serves(&CStr::from_ptr(name).to_string_lossy())
    }
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
