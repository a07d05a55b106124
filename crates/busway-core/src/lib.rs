//! The native engine of Busway: everything that is done once per message.
//!
//! No sockets, no clock, no randomness: bytes go in, bytes and events come out; only `log` has files and a thread that writes
//! them, and looks at a `clock`. The folders stand in the order in which a message meets them: `wire` (bytes to frames and
//! fields), `matching` (which subscriptions match a topic and its fields), `engine` (the broker's side), `client` (the
//! client's side), and `log` (what is stored).

pub mod client;
pub mod clock;
pub mod engine;
pub mod log;
pub mod matching;
pub mod wire;
