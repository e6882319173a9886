-- Tell the launcher of this database, and the role that creates the extension if no worker is free.
SELECT queen_mq.has_worker();
