//! The client's side: `codec` encodes and decodes frames, `inbox` queues messages until the program takes them.

pub mod codec;
pub mod inbox;
