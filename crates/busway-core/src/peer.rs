//! What the engine keeps for a connection with another node, besides what it keeps for every connection.

use rustc_hash::FxHashMap;
use std::sync::Arc;

use crate::connection::Who;

#[derive(Debug, Default)]
pub struct Peer {
    /// Clients of that node, by slot.
    pub senders: Vec<Option<Arc<Who>>>,
    /// The longest frame that it takes from its clients, if it has told.
    pub frame: Option<usize>,
    /// Our numbers of its streams.
    pub streams: FxHashMap<u32, u32>,
    /// Who asked a shared service of ours, by the number of the call.
    pub callers: FxHashMap<u64, Arc<Who>>,
    /// Interest of ours that was told to have no room, and the connection that has none.
    pub holds: FxHashMap<u32, u32>,
    /// When that was said last.
    pub said: u64,
    /// Where the first record of a stream lies that its subscriptions were not given for lack of room, though they miss nothing.
    pub behind: FxHashMap<u32, u64>,
    /// Counts how often it was said.
    pub words: u64,
}

impl Peer {
    pub fn sender(&self, slot: u32) -> Option<Arc<Who>> {
        self.senders.get(slot as usize)?.clone()
    }
}
