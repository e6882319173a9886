//! What a pop says to its client beside its rows, as a NOTICE: where a first step has likely gone
//! another way than was meant.
//!
//! Each is said once in a session about one queue or group, so that a consumer that pops over and
//! over is not told each time. `client_min_messages` silences them.

use std::hash::Hash;
use std::thread::LocalKey;

use crate::broker::group::beginning::Mode;
use crate::error::ClientNotice;
use crate::pg::session_cache::SessionCache;
use crate::store::group::{Group, QUEUE_MODE};

/// Queues and groups that a session remembers to have spoken of.
const REMEMBERED: usize = 256;

thread_local! {
    static MISSING_QUEUES: SessionCache<String, ()> = SessionCache::of(REMEMBERED);
    static OTHER_MODES: SessionCache<i64, ()> = SessionCache::of(REMEMBERED);
}

/// Whether the session has not spoken of this yet. From now on it has.
fn is_first<K: Hash + Eq>(spoken: &'static LocalKey<SessionCache<K, ()>>, of: K) -> bool {
    spoken.with(|spoken| {
        let is_first = spoken.take(&of).is_none();
        spoken.keep(of, ());
        is_first
    })
}

/// The queue that is popped from does not exist, as after a typing error in its name.
pub fn queue_is_missing(queue: &str) {
    if is_first(&MISSING_QUEUES, queue.to_owned()) {
        ClientNotice::new(format!("queue \"{queue}\" does not exist yet"))
            .detail(
                "A pop finds nothing in it. The first push to it, or queen_configure, creates it.",
            )
            .hint("Check the name of the queue.")
            .send();
    }
}

/// The call has registered a group that reads nothing of what is in the queue.
pub fn registered_as_new(queue: &str, group: &str) {
    ClientNotice::new(format!(
        "consumer group \"{group}\" of queue \"{queue}\" begins after the messages that are there"
    ))
    .detail("The group was registered by this call, as new: it gets what is committed from now on.")
    .hint(
        "With subscription_mode => 'all' a group is registered to read what is there, too. \
         queen_seek(queue, consumer_group, 'start') moves one that is registered.",
    )
    .send();
}

/// `asked`: how the call wants the group to be registered. It is registered already, and that
/// counts.
pub fn compare_modes(queue: &str, name: &str, group: &Group, asked: Option<Mode>) {
    let Some(asked) = asked.filter(|_| name != QUEUE_MODE) else { return };
    let registered = Mode::of(&group.start);
    if registered == asked || !is_first(&OTHER_MODES, group.id) {
        return;
    }
    let (asks_for, reads) = (in_words(asked), in_words(registered));
    ClientNotice::new(format!(
        "consumer group \"{name}\" of queue \"{queue}\" is registered already, and reads {reads}"
    ))
    .detail(match asks_for == reads {
        true => "This call asks for another time.".to_owned(),
        false => format!("This call asks for {asks_for}."),
    })
    .hint(
        "subscription_mode and subscription_from count for the call that registers the group. \
         queen_seek moves a group.",
    )
    .send();
}

fn in_words(mode: Mode) -> &'static str {
    match mode {
        Mode::New => "messages that come after its registration",
        Mode::All => "all messages",
        Mode::From(_) => "messages from a certain time on",
    }
}
