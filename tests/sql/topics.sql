-- Topics: queen_bind, queen_unbind, queen_publish and the view queen_bindings.
\set VERBOSITY terse
\pset footer off
\pset null (null)
\t on

-- A binding is there or not; it needs no queue.
SELECT queen_bind('orders.*', 'billing'), queen_bind('orders.*', 'billing'), queen_bind('orders.#', 'audit');
SELECT queen_bind('#', 'audit'), queen_bind('orders.new', 'billing'), queen_bind('invoices..#', 'odd');
SELECT * FROM queen_bindings ORDER BY pattern, queue;
SELECT count(*) FROM queen_queues;
-- Each bound queue gets the message once, in ascending order of the queues.
SELECT queue, message_id > 0, transaction_id, status FROM queen_publish('orders.new', '{"n": 1}', 'p', 'id-1', '{"h": 1}');
SELECT queue, partition, transaction_id, payload, headers FROM queen_messages ORDER BY queue;
-- Admission is asked for each queue by itself.
SELECT queen_unbind('orders.*', 'billing'), queen_unbind('orders.*', 'billing'), queen_bind('orders.new', 'third');
SELECT queue, status FROM queen_publish('orders.new', '{"n": 2}', 'p', 'id-1');
SELECT queue, transaction_id = 'msg-' || message_id FROM queen_publish('orders.old', '3');
-- As in AMQP, words may be empty, and # stands for none as well.
SELECT topic, string_agg(queue, ',') FROM unnest(ARRAY['invoices.', 'invoices', 'invoices..x', '.', 'orders', 'orders.new.eu', 'ORDERS.NEW', '#', '*']) AS t (topic),
  LATERAL queen_publish(topic, '0') GROUP BY topic ORDER BY topic;
-- Without a binding that matches, nothing is pushed.
SELECT queen_unbind('#', 'audit'), queen_unbind('nothing', 'audit');
SELECT count(*) FROM queen_publish('nowhere', '1');
-- A queue that is full, or that may not be created, refuses the whole.
SELECT queue FROM queen_configure('full', max_depth => 1);
SELECT status FROM queen_push('full', '1');
SELECT queen_bind('both', 'aaa'), queen_bind('both', 'full');
SELECT queen_publish('both', '1');
SELECT count(*) FROM queen_queues WHERE queue = 'aaa';
SELECT queen_bind('new', 'unborn');
SET queen_mq.auto_create = off;
SELECT queen_publish('new', '1');
SELECT queen_bind('new', 'unknown');
SELECT queen_unbind('new', 'unborn'), queen_bind('new', 'full');
RESET queen_mq.auto_create;
-- A queue that is deleted is bound no more. A purge leaves bindings.
SELECT queen_purge('audit') > 0, count(*) FROM queen_bindings WHERE queue = 'audit';
SELECT queen_delete_queue('audit'), count(*) FROM queen_bindings WHERE queue = 'audit';
SELECT queue FROM queen_publish('orders.old', '3');
SELECT count(*) FROM queen_bindings WHERE queue = 'audit';

-- Calls that are refused.
\set VERBOSITY default
SELECT queen_bind('', 'q');
SELECT queen_bind(NULL, 'q');
SELECT queen_bind('a', NULL);
SELECT queen_bind(repeat('x', 256), 'q');
SELECT queen_unbind(E'a\tb', 'q');
SELECT queen_publish('', '1');
SELECT queen_publish(NULL, '1');
SELECT queen_publish(repeat('x', 256), '1');
SELECT queen_publish('a', NULL);
SELECT queen_publish('a', '1', '');
SELECT queen_publish('a', '1', transaction_id => '');
