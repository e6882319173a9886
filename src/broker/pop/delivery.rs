//! A message on its way to the caller of a pop. A pop makes deliveries; `queen_pop` unpacks them
//! while it returns its rows.

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
    /// The packed contents of the message's segment. They are unpacked when the message is
    /// returned, so not all of them are in memory at once.
    pub contents: Contents,
    pub created_at: Moment,
    /// How often the message has been delivered, with this time.
    pub attempt: u32,
    /// How often the message was settled as failed before.
    pub failures: u32,
    /// The lease and its deadline; None: the message has been settled.
    pub lease: Option<(LeaseId, Moment)>,
}

/// Unpacks deliveries one after the other. It holds one segment in memory at a time.
pub struct Unpacking {
    scratch: Scratch,
    open: Option<(u64, Unpacked)>,
}

impl Unpacking {
    pub fn new() -> Self {
        Self { scratch: Scratch::new(), open: None }
    }

    /// The transaction_id, the payload and the headers of a message. They live until the next call
    /// for a message of another segment.
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
