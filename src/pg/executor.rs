//! Parts of the executor that differ between versions of PostgreSQL, or that pgrx does not know.

use std::ptr;

use pgrx::pg_sys;

use super::relation::WRITE;

unsafe extern "C-unwind" {
    fn ExecComputeStoredGenerated(
        target: *mut pg_sys::ResultRelInfo,
        state: *mut pg_sys::EState,
        slot: *mut pg_sys::TupleTableSlot,
        command: pg_sys::CmdType::Type,
    );
}

/// Fill in the generated columns of a row that is to be inserted.
///
/// # Safety
/// All pointers belong to one open statement.
pub unsafe fn compute_generated(
    target: *mut pg_sys::ResultRelInfo,
    state: *mut pg_sys::EState,
    slot: *mut pg_sys::TupleTableSlot,
) {
    let command = pg_sys::CmdType::CMD_INSERT;
    // SAFETY: called behind a guard, as pgrx calls what it knows: an ERROR in it unwinds.
    unsafe {
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            ExecComputeStoredGenerated(target, state, slot, command)
        });
    }
}

/// The range table of a statement on one relation.
///
/// # Safety
/// In the state's memory context; the relation is open.
pub unsafe fn init_range_table(state: *mut pg_sys::EState, relation: pg_sys::Relation) {
    // SAFETY: a node is zeroed memory with its tag.
    unsafe {
        let entry: *mut pg_sys::RangeTblEntry =
            pg_sys::palloc0(size_of::<pg_sys::RangeTblEntry>()).cast();
        (*entry).type_ = pg_sys::NodeTag::T_RangeTblEntry;
        (*entry).rtekind = pg_sys::RTEKind::RTE_RELATION;
        (*entry).relid = (*relation).rd_id;
        (*entry).relkind = (*(*relation).rd_rel).relkind;
        (*entry).rellockmode = WRITE;
        let entries = pg_sys::lappend(ptr::null_mut(), entry.cast());
        #[cfg(feature = "pg15")]
        pg_sys::ExecInitRangeTable(state, entries);
        #[cfg(not(feature = "pg15"))]
        {
            let mut permissions = ptr::null_mut();
            pg_sys::addRTEPermissionInfo(&mut permissions, entry);
            #[cfg(not(feature = "pg18"))]
            pg_sys::ExecInitRangeTable(state, entries, permissions);
            #[cfg(feature = "pg18")]
            pg_sys::ExecInitRangeTable(state, entries, permissions, pg_sys::bms_make_singleton(1));
        }
    }
}

/// Fire the BEFORE ROW triggers of a DELETE; false if one of them suppresses it.
///
/// # Safety
/// All pointers belong to one open statement.
pub unsafe fn before_delete(
    state: *mut pg_sys::EState,
    target: *mut pg_sys::ResultRelInfo,
    place: pg_sys::ItemPointer,
) -> bool {
    let (none, no_slot) = (ptr::null_mut(), ptr::null_mut());
    let mut recheck = pg_sys::EPQState::default();
    // SAFETY: no other transaction can change the row, so no newer version of it need be read.
    unsafe {
        #[cfg(feature = "pg15")]
        {
            pg_sys::EvalPlanQualInit(&mut recheck, state, ptr::null_mut(), ptr::null_mut(), -1);
            pg_sys::ExecBRDeleteTriggers(state, &mut recheck, target, place, none, no_slot)
        }
        #[cfg(not(feature = "pg15"))]
        {
            let (plan, marks, results) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
            pg_sys::EvalPlanQualInit(&mut recheck, state, plan, marks, -1, results);
            let (result, failure) = (ptr::null_mut(), ptr::null_mut());
            #[cfg(not(feature = "pg18"))]
            return pg_sys::ExecBRDeleteTriggers(
                state,
                &mut recheck,
                target,
                place,
                none,
                no_slot,
                result,
                failure,
            );
            #[cfg(feature = "pg18")]
            return pg_sys::ExecBRDeleteTriggers(
                state,
                &mut recheck,
                target,
                place,
                none,
                no_slot,
                result,
                failure,
                false,
            );
        }
    }
}

/// NULL as a value of a domain, which may forbid it; NULL for any other type.
///
/// # Safety
/// The attribute is one of a table.
pub unsafe fn null_of_domain(attribute: &pg_sys::FormData_pg_attribute) -> *mut pg_sys::Node {
    let of_type = attribute.atttypid;
    // SAFETY: look-ups in the catalogue caches, and new nodes.
    unsafe {
        if pg_sys::get_typtype(of_type) as u8 != pg_sys::TYPTYPE_DOMAIN {
            return ptr::null_mut();
        }
        let null = pg_sys::makeConst(
            of_type,
            -1,
            attribute.attcollation,
            attribute.attlen.into(),
            pg_sys::Datum::null(),
            true,
            attribute.attbyval,
        );
        pg_sys::coerce_to_domain(
            null.cast(),
            pg_sys::InvalidOid,
            -1,
            of_type,
            pg_sys::CoercionContext::COERCION_IMPLICIT,
            pg_sys::CoercionForm::COERCE_IMPLICIT_CAST,
            -1,
            false,
        )
    }
}
