-- A procedure, because a function cannot commit. pgrx declares functions only.
CREATE PROCEDURE queen_wait(queue text, consumer_group text, timeout interval,
                            INOUT ready boolean DEFAULT NULL)
LANGUAGE c AS 'MODULE_PATHNAME', 'queen_wait';
