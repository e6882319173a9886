//! Tests of this layer by itself, in a running server.

mod guard;
