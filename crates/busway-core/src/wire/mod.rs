//! The wire format: `splitter` finds the ends of frames, `frame` reads and writes them, `msgpack` and `fields` are the
//! fields of a message, `slots` the numbers of topics and senders.

pub mod fields;
pub mod frame;
pub mod msgpack;
pub mod slots;
pub mod splitter;
