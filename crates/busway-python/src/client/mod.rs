//! The client for Python: a session of one connection, what comes in over it, and the inboxes of its subscriptions.

pub mod inbox;
pub mod incoming;
pub mod publisher;
pub mod retained_seen;
pub mod session;
