//! Which kept messages a subscription has seen, so that coming back after a loss repeats none of them and hides no withdrawal.

use std::hash::{DefaultHasher, Hash, Hasher};

use busway_core::client::Delivery;
use busway_core::frame::flag;
use pyo3::prelude::*;
use rustc_hash::FxHashMap;

use crate::message::{identify, Message};

struct Known {
    /// The message's id.
    id: (u64, u64),
    /// The handing over in which it was last seen.
    round: u32,
    /// For those who are told of withdrawals.
    message: Option<Message>,
}

/// What one subscription knows of the kept messages.
pub struct Seen {
    known: FxHashMap<u64, Known>,
    round: u32,
    watch: bool,
}

impl Seen {
    pub fn new(watch: bool) -> Self {
        Self { known: FxHashMap::default(), round: 0, watch }
    }

    /// A handing over begins.
    pub fn begin(&mut self) {
        self.round += 1;
    }

    /// Whether something that was known was not handed over again.
    pub fn doubts(&self) -> bool {
        self.known.values().any(|known| known.round != self.round)
    }

    /// What was known and was not handed over again is gone.
    pub fn end(&mut self) -> Vec<Message> {
        let round = self.round;
        let mut gone = Vec::new();
        self.known.retain(|_, known| {
            if known.round != round {
                gone.extend(known.message.take());
            }
            known.round == round
        });
        gone
    }

    /// Whether a post or pin is known already; if not, it is from now on.
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
            // Handed over again, or put back by its sender after the broker was restarted; or by a broker that hears only now of what
            // its sender has replaced since.
            if before.id == id || before.id.0 == id.0 && before.id.1 > id.1 {
                before.round = round;
                return true;
            }
        }
        let message = self.watch.then(|| message.clone_ref(py));
        self.known.insert(key, Known { id, round, message });
        false
    }
}
