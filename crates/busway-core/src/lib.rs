//! The native engine of Busway: everything that is done once per message.
//!
//! No sockets, no clock, no randomness: bytes go in, bytes and events come out; only `log` has files and a thread that writes
//! them, and looks at a `clock`. The modules stand in the order in which
//! a message meets them: `frame` (what bytes mean), `split` (where frames end), `topic` and `pattern` (what matches), `packed`,
//! `fields`, `rules` with `glob` and `expression` (what a message is about, and who wants it), `index` with `expressions`
//! (who subscribed), `log` and `selection` (what is stored, and who wants that), `numbers` (slots of topics and senders), `outbox` and `aside` (what waits), `engine` with `route` and `pending` (the broker's
//! side), `client` and `inbox` (the client's side).

mod aside;
mod choice;
pub mod client;
pub mod clock;
mod connection;
pub mod engine;
mod expression;
pub mod expressions;
pub mod fields;
pub mod frame;
mod glob;
pub mod inbox;
pub mod index;
mod interest;
pub mod log;
pub mod numbers;
pub mod outbox;
pub mod packed;
pub mod pattern;
mod peer;
mod pending;
mod route;
pub mod rules;
pub mod selection;
pub mod split;
pub mod topic;
mod topics;
