//! The option `notify`: whatever enters the log of the queue is told to clients that LISTEN, by
//! `NOTIFY queen_mq, '<queue>'` at the commit.
//!
//! PostgreSQL lets one transaction of the server at a time commit with notifications. So only
//! queues with the option pay for it.

use crate::pg::notify::notify;
use crate::store::queue::Queue;

/// This transaction has written messages into the log of the queue.
pub fn announce(queue: &Queue) {
    if queue.options.notify() {
        notify(c"queen_mq", &queue.name);
    }
}
