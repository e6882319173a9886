//! A message on its way to the caller of a pop.

use std::rc::Rc;

use queen_engine::lease::LeaseId;
use queen_engine::message::MessageId;

use crate::error::Result;
use crate::pg::clock::Moment;
use crate::pg::datum::Jsonb;
use crate::pg::scratch::Scratch;
use crate::store::segment::{Contents, Unpacked};

/// A delivered message.
pub struct Delivery {
    pub partition: Rc<str>,
    pub message: MessageId,
    /// The contents of its segment, unpacked when the message is returned: not all are in memory at
    /// once.
    pub contents: Contents,
    pub created_at: Moment,
    pub attempt: u32,
    pub lease: Option<(LeaseId, Moment)>,
}

/// Unpacks the contents of messages that are returned one by one, a segment at a time.
pub struct Unpacking {
    scratch: Scratch,
    open: Option<(u64, Unpacked)>,
}

impl Unpacking {
    pub fn new() -> Self {
        Self { scratch: Scratch::new(), open: None }
    }

    /// transaction_id, payload and headers of a message. They live until the next call for a
    /// message of another segment.
    pub fn message(&mut self, of: &Delivery) -> Result<(String, Jsonb, Option<Jsonb>)> {
        let segment = of.message.segment();
        let open = match self.open.take() {
            Some((id, unpacked)) if id == segment => unpacked,
            _ => {
                self.scratch.clear();
                self.scratch.keep(|| of.contents.unpack())
            }
        };
        let index = of.message.index();
        let given = (open.names.of(of.message), open.payload(index)?, open.headers(index));
        self.open = Some((segment, open));
        Ok(given)
    }
}
