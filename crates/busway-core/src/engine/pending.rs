//! Requests and pushes that wait for an answer.

use rustc_hash::FxHashMap;
use std::sync::Arc;

use crate::engine::connection::Who;

#[derive(Debug)]
pub enum Pending {
    Call {
        origin: u32,
        number: u64,
        server: u32,
        /// The requester wants the name of the provider.
        gather: bool,
    },
    Offer {
        origin: u32,
        number: u64,
        consumer: u32,
        /// The consumer's subscription.
        sub: u32,
        topic: u32,
        flags: u8,
        body: Box<[u8]>,
        /// Connections that refused or ended.
        tried: Vec<u32>,
        /// A connection had no room.
        full: bool,
        /// The client of the node that is the origin.
        who: Option<Arc<Who>>,
        scope: u8,
    },
}

impl Pending {
    pub fn origin(&self) -> (u32, u64) {
        match self {
            Self::Call { origin, number, .. } | Self::Offer { origin, number, .. } => (*origin, *number),
        }
    }

    /// The connection whose answer is awaited.
    pub fn awaited(&self) -> u32 {
        match self {
            Self::Call { server, .. } => *server,
            Self::Offer { consumer, .. } => *consumer,
        }
    }
}

#[derive(Debug, Default)]
pub struct Table {
    open: FxHashMap<u64, Pending>,
    last: u64,
}

impl Table {
    pub fn len(&self) -> usize {
        self.open.len()
    }

    pub fn next_id(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub fn insert(&mut self, id: u64, pending: Pending) {
        self.open.insert(id, pending);
    }

    /// Removes it if it awaits the answer of `conn`.
    pub fn answered(&mut self, id: u64, conn: u32) -> Option<Pending> {
        if self.open.get(&id)?.awaited() != conn {
            return None;
        }
        self.open.remove(&id)
    }

    pub fn remove(&mut self, id: u64) -> Option<Pending> {
        self.open.remove(&id)
    }
}
