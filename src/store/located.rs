//! A cursor or a claim, and its newest state.

use queen_engine::cursor::Cursor;
use queen_engine::message::MessageId;

/// A cursor, or a claim, with its newest state.
#[derive(Clone, Debug)]
pub struct Located {
    pub id: u64,
    pub group: i64,
    pub partition: String,
    /// What it is a claim of; None: it is a cursor.
    pub message: Option<MessageId>,
    pub revision: i64,
    /// The current transaction has written this revision, or may have.
    pub is_own: bool,
    pub cursor: Cursor,
}

impl Located {
    /// A claim that is gone.
    pub(super) fn gone(id: u64, group: i64, partition: String) -> Self {
        Self::claim(id, group, &partition, MessageId::from_sql(0))
    }

    /// A claim that has no state yet, or none any more.
    pub fn claim(id: u64, group: i64, partition: &str, message: MessageId) -> Self {
        let (partition, message, cursor) = (partition.to_owned(), Some(message), Cursor::default());
        Self { id, group, partition, message, revision: 0, is_own: false, cursor }
    }
}
