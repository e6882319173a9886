-- What \df+ and \d+ tell. The reference is in the functions' documentation.

COMMENT ON FUNCTION queen_configure IS
    'Create a queue or change its options (NULL keeps, unset puts back to the default); returns the options in effect';
COMMENT ON FUNCTION queen_delete_queue IS
    'Remove a queue with its log, groups, leases and dead letters; returns the number of messages removed';
COMMENT ON FUNCTION queen_push IS
    'Append one message to a partition of a queue; a transaction_id seen within the dedup window is a duplicate';
COMMENT ON FUNCTION queen_push_batch IS
    'Append messages to one partition of a queue, in order; one row for each';
COMMENT ON FUNCTION queen_push_items IS
    'Append messages to several queues and partitions: [{"queue","payload","partition"?,"transactionId"?,"headers"?}]';
COMMENT ON FUNCTION queen_pop IS
    'Take messages for a consumer group (NULL: queue mode) and hold them under a lease';
COMMENT ON FUNCTION queen_ack IS
    'Settle messages of a lease (all that is left, or those named) as completed, failed, retry or dead_letter; a lost lease raises QN001 to QN004';
COMMENT ON FUNCTION queen_settle IS
    'Settle a mixed batch of one lease: [{"messageId"|"transactionId","partition"?,"status","error"?}]';
COMMENT ON FUNCTION queen_extend IS
    'Hold on to a lease for longer; never shortens, never revives; returns when it ends';
COMMENT ON FUNCTION queen_subscribe IS
    'Register a consumer group: mode new, all, or from a time; false if it existed';
COMMENT ON FUNCTION queen_tx_commit IS
    'Settle, push and write markers, all or nothing, inside the caller''s transaction';
COMMENT ON FUNCTION queen_mq.group_figures IS
    'Behind the view queen_groups';
COMMENT ON FUNCTION @extschema@.queen_unsubscribe(text, text) IS
    'Remove a consumer group; whoever holds a lease of it has lost it.';
COMMENT ON FUNCTION @extschema@.queen_seek(text, text, text, timestamptz, text) IS
    'Move a consumer group to the start, the end or a time.';
COMMENT ON FUNCTION @extschema@.queen_purge(text) IS
    'Remove all messages of a queue; options and groups stay.';
COMMENT ON FUNCTION @extschema@.queen_dead_letter_replay(bigint) IS
    'Push a dead letter again, for its own group alone.';
COMMENT ON FUNCTION @extschema@.queen_dead_letter_purge(text, text, interval) IS
    'Delete dead letters.';
COMMENT ON FUNCTION @extschema@.queen_schedule(text, text, jsonb, interval, timestamptz, text, text, jsonb) IS
    'Push a message later; one timer for each key.';
COMMENT ON FUNCTION @extschema@.queen_cancel(text, text) IS
    'Cancel a timer.';
COMMENT ON FUNCTION @extschema@.queen_metrics() IS
    'Figures of every queue and consumer group.';
COMMENT ON FUNCTION @extschema@.queen_prometheus() IS
    'The same in the text format that Prometheus scrapes.';
COMMENT ON FUNCTION @extschema@.queen_sweep(integer) IS
    'Tidy up: what the background worker does, from any scheduler.';
COMMENT ON FUNCTION queen_mq.queue_figures IS
    'Behind the view queen_queues';
COMMENT ON FUNCTION queen_mq.live_leases IS
    'Behind the view queen_leases';
COMMENT ON FUNCTION @extschema@.queen_worker_start() IS
    'Start a background worker for this database, until the server is restarted.';
COMMENT ON PROCEDURE @extschema@.queen_wait(text, text, interval, boolean) IS
    'Wait for something to pop, outside of any transaction.';
