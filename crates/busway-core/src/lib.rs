//! The native engine of Busway: all work per message. The Python extension `busway-python` calls it.
//!
//! It has no sockets, clock or randomness: bytes go in, bytes and events come out. Only `log` uses files, a thread that
//! writes them, and a `clock`. The modules are in the order in which a message meets them: `wire` (frames and fields),
//! `matching` (which subscriptions match a topic and its fields), `engine` (the broker's side), `client` (the client's
//! side), and `log` (stored messages).

#![forbid(unsafe_code)]

pub mod client;
pub mod clock;
pub mod engine;
pub mod log;
pub mod matching;
pub mod wire;
