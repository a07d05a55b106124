//! The wire format: `splitter` finds where frames end, `frame` reads and writes them, `msgpack` and `fields` are the fields of
//! a message, `slots` the numbers that stand for topics and senders.

pub mod fields;
pub mod frame;
pub mod msgpack;
pub mod slots;
pub mod splitter;
