//! Segments as they were read from the log, and their messages.

use pgrx::FromDatum;
use queen_engine::message::{DERIVED_MAX, MessageId};
use queen_engine::pop::FoundSegment;

use crate::error::{Error, Result};
use crate::pg::arrays::{Array, Elements, JsonbArray, TextArray};
use crate::pg::clock::Moment;
use crate::pg::datum::Jsonb;
use crate::pg::scan::StoredValue;
use crate::pg::text::{Text, TextRoom};

/// A segment that was read from the log. Its contents are still packed as they lie in the table.
#[derive(Clone, Copy)]
pub struct Stored {
    pub(super) id: u64,
    pub(super) xid: u64,
    pub(super) messages: u16,
    pub(super) created_at: Moment,
    /// It is not for the reader: too old for its group, or for another group alone.
    pub(super) skip: bool,
    /// It is for one group alone: a dead letter that was replayed.
    pub(super) is_replay: bool,
    pub(super) contents: Contents,
}

impl Stored {
    pub fn id(&self) -> u64 {
        self.id
    }

    pub fn xid(&self) -> u64 {
        self.xid
    }

    pub fn found(&self) -> FoundSegment {
        let (segment, messages, skip) = (self.id, self.messages, self.skip);
        FoundSegment { segment, messages, skip, repeats: None }
    }

    /// Whether it is a dead letter that was replayed for the reader.
    pub fn is_replay(&self) -> bool {
        self.is_replay && !self.skip
    }

    pub fn created_at(&self) -> Moment {
        self.created_at
    }

    pub fn contents(&self) -> Contents {
        self.contents
    }
}

/// The messages of a segment as they lie in the table. A value that does not fit into a page lies
/// in the TOAST table, and this holds its address. So it takes a page at most, in the memory
/// context that it was read or copied into.
///
/// A caller may unpack it while it holds a snapshot that was taken no later than the one it was
/// read with. Then the large values are still there, whatever has become of the row:
///
/// - Only vacuum removes a large value, and only when the transaction that deleted the row had
///   ended before every snapshot in use was taken. The row was visible when it was read. So no
///   transaction that deletes it had ended by then, nor when an earlier snapshot was taken.
/// - No statement rewrites or truncates the table, because the reader holds its lock to the end of
///   the transaction.
///
/// The caller of an SQL function holds such a snapshot until the function returns: in every
/// isolation level, in PL/pgSQL, and in read-only functions.
#[derive(Clone, Copy)]
pub struct Contents {
    pub(super) payloads: StoredValue,
    pub(super) transaction_ids: StoredValue,
    pub(super) headers: StoredValue,
}

impl Contents {
    /// A copy in the current memory context.
    pub fn copied(self) -> Self {
        Self {
            payloads: self.payloads.copied(),
            transaction_ids: self.transaction_ids.copied(),
            headers: self.headers.copied(),
        }
    }

    /// Unpack the messages into the current memory context.
    pub fn unpack(self) -> Unpacked {
        let headers = self.headers.get().map(JsonbArray::elements);
        Unpacked {
            payloads: self.payloads.get().map_or_else(Elements::none, JsonbArray::elements),
            headers: headers.unwrap_or_else(Elements::none),
            names: self.names(),
        }
    }

    /// Unpack the transaction_ids alone. Allowed as long as `unpack` is.
    pub fn names(self) -> TransactionIds {
        TransactionIds(self.transaction_ids.get().map_or_else(Elements::none, TextArray::elements))
    }
}

/// The transaction_ids of a segment. They live as long as the memory context they were unpacked in.
pub struct TransactionIds(Elements);

impl TransactionIds {
    /// That of one message: as it was pushed, or derived from the message's id.
    pub fn of(&self, message: MessageId) -> String {
        let given = self.0.get(usize::from(message.index()));
        // SAFETY: an element of a text array.
        given
            .and_then(|datum| unsafe { String::from_datum(datum, false) })
            .unwrap_or_else(|| message.derived_transaction_id())
    }

    /// That of one message, for a row of a result; `room` is for one that is derived.
    pub fn text_of(&self, message: MessageId, room: &mut TextRoom) -> Text {
        let given = self.0.get(usize::from(message.index())).map(Text::new);
        given.unwrap_or_else(|| room.hold(message.derived_in(&mut [0; DERIVED_MAX])))
    }
}

/// The contents of a segment. Values live as long as the memory context they were unpacked in.
pub struct Unpacked {
    payloads: Elements,
    headers: Elements,
    pub names: TransactionIds,
}

impl Unpacked {
    pub fn payload(&self, index: u16) -> Result<Jsonb> {
        let payload = self.payloads.get(usize::from(index));
        payload.map(Jsonb::new).ok_or_else(|| {
            Error::corrupt_in("queen_mq.segment", "a segment is shorter than its count")
        })
    }

    pub fn headers(&self, index: u16) -> Option<Jsonb> {
        self.headers.get(usize::from(index)).map(Jsonb::new)
    }
}
