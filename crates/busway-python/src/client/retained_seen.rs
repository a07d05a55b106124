//! The retained messages that a subscription knows, so that a reconnect repeats none and misses no withdrawal.

use std::hash::{DefaultHasher, Hash, Hasher};

use busway_core::client::codec::Delivery;
use busway_core::wire::frame::flag;
use pyo3::prelude::*;
use rustc_hash::FxHashMap;

use crate::message::{identify, Message};

struct Known {
    id: Id,
    /// The round of retained messages in which it was last delivered.
    round: u32,
    /// The message, for subscriptions that watch withdrawals.
    message: Option<Message>,
    /// An older message that it replaced, delivered since the last round: the broker may still retain the older one.
    older: Option<(Id, Message)>,
}

/// Of a message: its session and number.
type Id = (u64, u64);

/// The changes after a round.
#[derive(Default)]
pub struct Missing {
    pub gone: Vec<Message>,
    /// Older messages that are retained in their places.
    pub instead: Vec<Message>,
}

/// The retained messages that a subscription knows.
pub struct Seen {
    known: FxHashMap<u64, Known>,
    round: u32,
    watch: bool,
}

impl Seen {
    pub fn new(watch: bool) -> Self {
        Self { known: FxHashMap::default(), round: 0, watch }
    }

    /// Begins a round of retained messages.
    pub fn begin(&mut self) {
        self.round += 1;
        for known in self.known.values_mut() {
            known.older = None;
        }
    }

    /// True if a known message was not delivered again.
    pub fn doubts(&self) -> bool {
        self.known.values().any(|known| known.round != self.round)
    }

    /// Removes the known messages that were not delivered again.
    pub fn end(&mut self, py: Python<'_>) -> Missing {
        let (round, watch) = (self.round, self.watch);
        let mut missing = Missing::default();
        self.known.retain(|_, known| {
            if known.round == round {
                return true;
            }
            missing.gone.extend(known.message.take());
            let Some((id, older)) = known.older.take() else { return false };
            missing.instead.push(older.clone_ref(py));
            *known = Known { id, round, message: watch.then_some(older), older: None };
            true
        });
        missing
    }

    /// True if a post or pin is already known. A new one is added.
    pub fn knows(&mut self, py: Python<'_>, delivery: &Delivery, message: &Message) -> bool {
        let mut hasher = DefaultHasher::new();
        let id = identify(py, message, delivery.flags & flag::PIN != 0, &mut hasher);
        delivery.body.fields.hash(&mut hasher);
        let (key, round) = (hasher.finish(), self.round);
        if delivery.flags & flag::WITHDRAWN != 0 {
            self.known.remove(&key);
            return false;
        }
        if let Some(before) = self.known.get_mut(&key) {
            // Delivered again, or sent again after a restart of the broker.
            if before.id == id {
                (before.round, before.older) = (round, None);
                return true;
            }
            // From a broker that has lost a newer message of the sender, or does not have it yet.
            if before.id.0 == id.0 && before.id.1 > id.1 {
                if before.round != round {
                    before.older = Some((id, message.clone_ref(py)));
                }
                return true;
            }
        }
        let message = self.watch.then(|| message.clone_ref(py));
        self.known.insert(key, Known { id, round, message, older: None });
        false
    }
}
