//! Which kept messages a subscription has seen, so that coming back after a loss repeats none of them and hides no withdrawal.

use std::hash::{DefaultHasher, Hash, Hasher};

use busway_core::client::codec::Delivery;
use busway_core::wire::frame::flag;
use pyo3::prelude::*;
use rustc_hash::FxHashMap;

use crate::message::{identify, Message};

struct Known {
    id: Id,
    /// The handing over in which it was last seen.
    round: u32,
    /// For those who are told of withdrawals.
    message: Option<Message>,
    /// One that it had replaced, which was given since the last handing over: what is kept, unless this one is still to come.
    older: Option<(Id, Message)>,
}

/// Of a message: its session and number.
type Id = (u64, u64);

/// What has become of what was known.
#[derive(Default)]
pub struct Settled {
    pub gone: Vec<Message>,
    /// Older ones that are kept in their places.
    pub instead: Vec<Message>,
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
        for known in self.known.values_mut() {
            known.older = None;
        }
    }

    /// Whether something that was known was not handed over again.
    pub fn doubts(&self) -> bool {
        self.known.values().any(|known| known.round != self.round)
    }

    /// What was known and was not handed over again is gone.
    pub fn end(&mut self, py: Python<'_>) -> Settled {
        let (round, watch) = (self.round, self.watch);
        let mut settled = Settled::default();
        self.known.retain(|_, known| {
            if known.round == round {
                return true;
            }
            settled.gone.extend(known.message.take());
            let Some((id, older)) = known.older.take() else { return false };
            settled.instead.push(older.clone_ref(py));
            *known = Known { id, round, message: watch.then_some(older), older: None };
            true
        });
        settled
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
            // Handed over again, or put back by its sender after the broker was restarted.
            if before.id == id {
                (before.round, before.older) = (round, None);
                return true;
            }
            // Given by a broker that hears only now of what its sender has replaced since, and will hear of that; or that has lost it.
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
