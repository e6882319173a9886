//! What a group has done with a segment of the log.

/// What a group has done with a segment; the number is one of messages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SegmentStatus {
    Settled,
    /// A lease refers to it. In an ordered group the lease may have expired.
    Leased,
    /// It has been read, and so many of its messages are not settled.
    Waiting(i64),
    /// It has not been read.
    Unread {
        is_for_group: bool,
    },
}

impl SegmentStatus {
    /// Whether the group needs none of its messages any more.
    pub fn is_settled(self) -> bool {
        matches!(self, SegmentStatus::Settled | SegmentStatus::Unread { is_for_group: false })
    }
}
