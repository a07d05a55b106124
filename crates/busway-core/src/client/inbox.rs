//! The inbox of a subscription at a client: bounded, with the same policies as the broker's outbox.
//!
//! Under `block` and `disconnect` a full inbox is reported to the broker, and messages in flight are still accepted.

use std::collections::VecDeque;

use crate::wire::frame::policy;

/// Messages and bytes that may be in flight when the broker learns that there is no room: in its outbox and in sockets.
const ON_ITS_WAY: (usize, usize) = (1 << 20, 32 << 20);

/// The room that ends the state "full", in messages and bytes; half of the limit if that is less.
const GAP: (usize, usize) = (2048, 2 << 20);

#[derive(Debug)]
pub struct Inbox<T> {
    /// Item, its size, and the number of missed messages before it.
    items: VecDeque<(T, usize, u64)>,
    /// Missed messages before the first item, dropped from the front.
    front: u64,
    bytes: usize,
    most_items: usize,
    most_bytes: usize,
    policy: u8,
    /// Missed messages that were not reported to the consumer yet.
    unreported: u64,
    pub missed: u64,
    pub received: u64,
    full: bool,
}

impl<T> Inbox<T> {
    pub fn new(most_items: usize, most_bytes: usize, policy: u8) -> Self {
        Self {
            items: VecDeque::new(),
            front: 0,
            bytes: 0,
            most_items: most_items.max(1),
            most_bytes: most_bytes.max(1),
            policy,
            unreported: 0,
            missed: 0,
            received: 0,
            full: false,
        }
    }

    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// True if the limit was exceeded and there is not enough room again.
    pub fn is_full(&self) -> bool {
        self.full
    }

    fn over(&self) -> bool {
        self.items.len() >= self.most_items || self.bytes >= self.most_bytes
    }

    /// Makes room, or returns false if the next message can't be accepted.
    fn admit(&mut self) -> bool {
        match self.policy {
            policy::BLOCK | policy::DISCONNECT => {
                let (items, bytes) = ON_ITS_WAY;
                self.items.len() < self.most_items + items && self.bytes < self.most_bytes + bytes
            }
            policy::DROP_OLDEST => {
                while self.over() {
                    let Some((_, size, before)) = self.items.pop_front() else { break };
                    self.bytes -= size;
                    self.received -= 1;
                    self.missed += 1;
                    self.front += before + 1;
                }
                true
            }
            _ => !self.over(),
        }
    }

    /// Accepts a message of `size` bytes that `make` creates; false: it was dropped.
    #[inline]
    pub fn push(&mut self, size: usize, make: impl FnOnce() -> T) -> bool {
        if !self.admit() {
            self.miss(1);
            return false;
        }
        self.items.push_back((make(), size, std::mem::take(&mut self.unreported)));
        self.received += 1;
        self.bytes += size;
        self.full = self.full || self.over();
        true
    }

    /// True if an offered message would be accepted.
    pub fn has_room(&self) -> bool {
        !self.over()
    }

    /// Removes the newest item for which `is` returns true, if it is still queued.
    pub fn withdraw(&mut self, is: impl Fn(&T) -> bool) -> bool {
        let Some(at) = self.items.iter().rposition(|(item, ..)| is(item)) else { return false };
        let Some((_, size, before)) = self.items.remove(at) else { return false };
        match self.items.get_mut(at) {
            Some(next) => next.2 += before,
            None => self.unreported += before,
        }
        self.bytes -= size;
        self.received -= 1;
        self.relax();
        true
    }

    fn relax(&mut self) {
        let (items, bytes) = (GAP.0.min(self.most_items / 2), GAP.1.min(self.most_bytes / 2));
        if self.full
            && self.items.len() <= self.most_items - items.max(1)
            && self.bytes <= self.most_bytes - bytes.max(1)
        {
            self.full = false;
        }
    }

    pub fn miss(&mut self, count: u64) {
        self.missed += count;
        self.unreported += count;
    }

    /// The oldest item, and the number of missed messages before it.
    pub fn pop(&mut self) -> Option<(T, u64)> {
        let (item, size, before) = self.items.pop_front()?;
        let missed = before + std::mem::take(&mut self.front);
        self.bytes -= size;
        self.relax();
        Some((item, missed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_its_way_is_taken_and_no_more() {
        let mut inbox = Inbox::new(4, 1 << 20, policy::BLOCK);
        assert!((0..4 + ON_ITS_WAY.0).all(|i| inbox.push(1, || i)) && inbox.is_full());
        assert!(!inbox.push(1, || 0) && inbox.missed == 1);
    }

    #[test]
    fn what_is_withdrawn_leaves_its_account_behind() {
        let mut inbox = Inbox::new(4, 1 << 20, policy::BLOCK);
        inbox.miss(2);
        inbox.push(3, || 'a');
        inbox.push(3, || 'b');
        assert!(inbox.withdraw(|&item| item == 'a') && !inbox.withdraw(|&item| item == 'a'));
        assert_eq!((inbox.pop(), inbox.received, inbox.bytes()), (Some(('b', 2)), 1, 0));
    }

    #[test]
    fn policies() {
        for (policy, kept, first) in [
            (policy::BLOCK, 10, (0, 0)),
            (policy::DROP_OLDEST, 4, (6, 6)),
            (policy::DROP_NEW, 4, (0, 0)),
            (policy::DISCONNECT, 10, (0, 0)),
        ] {
            let mut inbox = Inbox::new(4, 1 << 20, policy);
            for i in 0..10_u64 {
                inbox.push(1, || i);
            }
            assert_eq!((inbox.len(), inbox.missed, inbox.is_full()), (kept, 10 - kept as u64, true), "{policy}");
            assert_eq!(inbox.received, kept as u64);
            assert_eq!(inbox.pop(), Some(first), "{policy}");
            while inbox.pop().is_some() {}
            assert!(!inbox.is_full() && inbox.bytes() == 0);
            inbox.push(1, || 10);
            let missed = if policy == policy::DROP_OLDEST { 0 } else { 10 - kept as u64 };
            assert_eq!(inbox.pop(), Some((10, missed)));
        }
    }
}
