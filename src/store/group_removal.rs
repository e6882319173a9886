//! Deleting consumer groups with all that is theirs, when their queue is deleted.

use pgrx::pg_sys;

use super::group::Group;
use crate::pg::catalogue;
use crate::pg::columns::arg;
use crate::pg::spi::Statement;

static DELETE: [Statement; 5] = [
    Statement::new(
        "DELETE FROM queen_mq.progress WHERE cursor_id = ANY (ARRAY(
             SELECT id FROM queen_mq.cursor WHERE group_id = ANY ($1)
             UNION ALL SELECT id FROM queen_mq.claim WHERE group_id = ANY ($1)))",
        &[pg_sys::INT8ARRAYOID],
    ),
    Statement::new("DELETE FROM queen_mq.claim WHERE group_id = ANY ($1)", &[pg_sys::INT8ARRAYOID]),
    Statement::new(
        "DELETE FROM queen_mq.cursor WHERE group_id = ANY ($1)",
        &[pg_sys::INT8ARRAYOID],
    ),
    Statement::new(
        "DELETE FROM queen_mq.discovery WHERE group_id = ANY ($1)",
        &[pg_sys::INT8ARRAYOID],
    ),
    Statement::new(
        "DELETE FROM queen_mq.consumer_group WHERE id = ANY ($1)",
        &[pg_sys::INT8ARRAYOID],
    ),
];
static DELETE_RECEIPTS: [Statement; 2] = [
    Statement::new(
        "DELETE FROM queen_mq.receipt WHERE cursor_id = ANY (ARRAY(
             SELECT id FROM queen_mq.cursor WHERE group_id = ANY ($1)))",
        &[pg_sys::INT8ARRAYOID],
    ),
    // Receipts of claims. Most of these claims are gone, so the receipts name the group.
    Statement::new(
        "DELETE FROM queen_mq.receipt WHERE group_id = ANY ($1)",
        &[pg_sys::INT8ARRAYOID],
    ),
];

/// Delete groups with their cursors and claims. The caller has locked all of them.
pub fn delete(groups: &[Group]) {
    let ids: Vec<i64> = groups.iter().map(|group| group.id).collect();
    catalogue::announce();
    for statement in DELETE_RECEIPTS.iter().chain(&DELETE) {
        statement.run(&[arg(ids.clone())]);
    }
}
