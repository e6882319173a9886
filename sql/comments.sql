-- What psql's \df+ shows for functions. The full reference is in docs/reference.

COMMENT ON FUNCTION queen_configure IS
    'Create a queue, or change its options (NULL keeps an option, unset sets it back to its default). Returns the options in effect.';
COMMENT ON FUNCTION queen_delete_queue IS
    'Delete a queue with its messages, groups, leases, timers, bindings and dead letters. Returns the number of messages.';
COMMENT ON FUNCTION queen_pause IS
    'Let pops of a queue (consumer_group NULL), or of one of its groups, find nothing until queen_resume. Returns false if it is paused already.';
COMMENT ON FUNCTION queen_resume IS
    'Let pops of a queue (consumer_group NULL), or of one of its groups, find messages again. Returns false if it is not paused.';
COMMENT ON FUNCTION queen_push IS
    'Append a message to a partition of a queue. A transaction_id that was pushed within the dedup_window is a duplicate, and nothing is stored.';
COMMENT ON FUNCTION queen_push_batch IS
    'Append messages to one partition of a queue, in order. Returns a row for each message.';
COMMENT ON FUNCTION queen_push_items IS
    'Append messages to several queues and partitions. items: [{"queue","payload","partition"?,"transactionId"?,"headers"?}]. Returns a row for each message.';
COMMENT ON FUNCTION queen_pop IS
    'Get messages for a consumer group (NULL: queue mode), and hold them under a lease. Settle them with queen_ack or queen_settle.';
COMMENT ON FUNCTION queen_pop_any IS
    'Get messages, as queen_pop does, from the first of several queues that has some, and from that one alone.';
COMMENT ON FUNCTION queen_ack IS
    'Settle messages of a lease (those named, or all that it still holds) as completed, failed, retry or dead_letter. If the lease is not valid any more, error QN001 to QN004.';
COMMENT ON FUNCTION queen_settle IS
    'Settle messages of one lease with different results: [{"messageId"|"transactionId","partition"?,"status","error"?}]. Returns a row for each message.';
COMMENT ON FUNCTION queen_extend IS
    'Prolong a lease, and return the moment at which it ends. Never shortens a lease, never revives an expired one.';
COMMENT ON FUNCTION queen_subscribe IS
    'Register a consumer group: in mode new or all, or from a time. Returns false if the group exists, and then changes nothing.';
COMMENT ON FUNCTION queen_tx_commit IS
    'Settle, push, write markers and set timers, all or nothing, in the caller''s transaction. A refusal is an answer, not an error.';
COMMENT ON FUNCTION queen_mq.group_figures IS
    'The rows of the view queen_groups';
COMMENT ON FUNCTION @extschema@.queen_configure_group IS
    'Give a consumer group (NULL: queue mode) options of its own, in place of the queue''s. Returns the options in effect for it.';
COMMENT ON FUNCTION @extschema@.queen_unsubscribe(text, text) IS
    'Remove a consumer group (NULL: queue mode). A lease of the group is lost: settling under it is QN002.';
COMMENT ON FUNCTION @extschema@.queen_seek(text, text, text, timestamptz, text) IS
    'Move a consumer group (NULL: queue mode) to the start, the end or a time, in one partition or in all. Its leases there are lost. Returns the number of partitions.';
COMMENT ON FUNCTION @extschema@.queen_purge(text, text) IS
    'Delete all messages of a queue, or of one partition, and return how many there were. Options, groups, timers and dead letters stay.';
COMMENT ON FUNCTION @extschema@.queen_dead_letter_replay(bigint) IS
    'Move a dead letter to the end of its partition, for its own group alone.';
COMMENT ON FUNCTION @extschema@.queen_dead_letter_replay_all(text, text, text, timestamptz, int) IS
    'Move dead letters of a queue to the ends of their partitions, each for its own group alone, the oldest first. Returns how many.';
COMMENT ON FUNCTION @extschema@.queen_dead_letter_purge(text, text, interval) IS
    'Delete dead letters of a queue: of one group or of all, of any age or older than an interval. Returns how many.';
COMMENT ON FUNCTION @extschema@.queen_schedule(text, text, jsonb, interval, timestamptz, text, text, jsonb) IS
    'Schedule a message that enters the log later. A timer of this key is replaced.';
COMMENT ON FUNCTION @extschema@.queen_every(text, text, text, jsonb, text, jsonb, text) IS
    'Push a message over and over, by a cron expression or at an interval. A timer of this key is replaced.';
COMMENT ON FUNCTION @extschema@.queen_cancel(text, text) IS
    'Cancel a timer, or end a recurring message. Returns false if there is none.';
COMMENT ON FUNCTION @extschema@.queen_bind(text, text) IS
    'Bind a queue to the topics that a pattern matches (* stands for one word, # for any number). Returns false if it is bound so already.';
COMMENT ON FUNCTION @extschema@.queen_unbind(text, text) IS
    'Undo the binding of a queue to a pattern. Returns false if there is none.';
COMMENT ON FUNCTION @extschema@.queen_publish(text, jsonb, text, text, jsonb) IS
    'Push a message to each queue that is bound to a topic. Returns a row for each queue.';
COMMENT ON FUNCTION @extschema@.queen_message_status(text, text, text) IS
    'What became of the message of a transaction_id, a row for each consumer group that it is for';
COMMENT ON FUNCTION @extschema@.queen_metrics() IS
    'Figures of every queue and every consumer group, a row for each';
COMMENT ON FUNCTION @extschema@.queen_prometheus() IS
    'The figures of queen_metrics in the text format that Prometheus scrapes';
COMMENT ON FUNCTION @extschema@.queen_sweep(integer) IS
    'Sweep for about max_ms milliseconds: delete what is old, and move due timers into the log. Only needed where no background worker runs.';
COMMENT ON FUNCTION queen_mq.queue_figures IS
    'The rows of the view queen_queues';
COMMENT ON FUNCTION queen_mq.live_leases IS
    'The rows of the view queen_leases';
COMMENT ON FUNCTION queen_mq.blocked_partitions IS
    'The rows of the view queen_blocked';
COMMENT ON FUNCTION queen_mq.has_worker() IS
    'Whether a background worker serves this database, at all times or in turn with others. Sends a WARNING if none is free for it.';
COMMENT ON FUNCTION @extschema@.queen_worker_start() IS
    'Start a background worker for this database. It runs until it is terminated, the extension is dropped, the database is not to be served any more, a command such as DROP DATABASE wants the database for itself, or the server stops. Returns false if one runs, or if none can be started.';
COMMENT ON PROCEDURE @extschema@.queen_wait(text, text, interval, boolean) IS
    'Wait, outside of any transaction, until there is something for a consumer group to pop. Pops nothing.';
COMMENT ON FUNCTION @extschema@.queen_grant(text, text, text) IS
    'Grant a role the privilege push, pop, manage or monitor on a queue, or on all queues (NULL). Returns false if it was granted before.';
COMMENT ON FUNCTION @extschema@.queen_revoke(text, text, text) IS
    'Take a privilege on a queue from a role; NULL: on all queues, also on single ones. Returns false if it was not granted.';
COMMENT ON FUNCTION @extschema@.queen_grant_kv(text, text, text) IS
    'Grant a role the privilege read or write on a namespace of markers, or on all of them (NULL). Returns false if it was granted before.';
COMMENT ON FUNCTION @extschema@.queen_revoke_kv(text, text, text) IS
    'Take a privilege on a namespace of markers from a role; NULL: on all namespaces, also on single ones. Returns false if it was not granted.';
COMMENT ON FUNCTION queen_mq.sees(text, text) IS
    'Whether the calling role has a privilege on a queue, or on all queues (NULL). The views ask it.';
