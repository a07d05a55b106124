//! The client for Python: a session encodes, `incoming` decodes, and inboxes hold the messages of subscriptions.

pub mod inbox;
pub mod incoming;
pub mod publisher;
pub mod retained_seen;
pub mod session;
