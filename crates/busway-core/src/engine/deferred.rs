//! Publishers that wait: their publishes are set aside and all else of their connection is handled, since others may wait for
//! just that, and one of them may wait for this one's word. Only while an outbox is crowded, which mostly is over in a moment,
//! nothing of them is read at first.

use super::{Engine, Event};
use crate::wire::frame::{flag, kind, Writer};
use crate::wire::splitter::{Flow, Splitter};

/// Bytes set aside from which on the client is told to stop; short waits are not worth a word.
const AHEAD: usize = 256 << 10;
/// Bytes set aside above which its connection is not read.
const MOST: usize = 4 << 20;

#[derive(Debug, Default)]
pub struct Aside {
    pub frames: Splitter,
    /// The client was told to stop.
    pub told: bool,
}

impl Aside {
    pub fn bytes(&self) -> usize {
        self.frames.len()
    }

    pub fn is_full(&self) -> bool {
        self.bytes() > MOST
    }

    /// Whether the client is to be told now, and was not before.
    pub fn tell(&mut self) -> bool {
        self.bytes() > AHEAD && !std::mem::replace(&mut self.told, true)
    }
}

impl Engine {
    /// Keeps a frame for later if those before it wait.
    pub(super) fn set_aside(&mut self, conn: u32, frame: &[u8]) -> bool {
        let Some(aside) = self.conn(conn).and_then(|this| this.aside.as_mut()) else { return false };
        aside.frames.hold(frame);
        let full = aside.is_full();
        if aside.tell() {
            self.flow(conn, flag::STOP);
        }
        if full {
            // A client that goes on publishing although it was told not to.
            self.events.push(Event::Pause(conn));
        }
        true
    }

    /// A tick has passed: those who were blocked before it already are read again.
    pub(super) fn read_on(&mut self) {
        for by in self.slow().collect::<Vec<_>>() {
            let waiters = self.conn(by).map_or_else(Vec::new, |this| this.waiters.clone());
            for conn in waiters {
                let Some(this) = self.conn(conn).filter(|this| this.blocked_by == Some(by) && this.aside.is_none())
                else {
                    continue;
                };
                if std::mem::replace(&mut this.waited, true) {
                    this.aside = Some(Box::default());
                    self.events.push(Event::Read(conn));
                    self.run(conn, None);
                }
            }
        }
    }

    /// FLOW: whether the client shall publish.
    fn flow(&mut self, conn: u32, flags: u8) {
        self.put(conn, |out| {
            Writer::new(out, kind::FLOW, flags).u16(0).end();
        });
    }

    /// Connections with something set aside.
    pub fn waiting(&self) -> Vec<u32> {
        let all = self.conns.iter().enumerate().filter_map(|(i, conn)| Some((i as u32, conn.as_ref()?)));
        all.filter(|(_, conn)| conn.aside.is_some()).map(|(i, _)| i).collect()
    }

    /// Goes on with what was set aside; true: nothing is left of it.
    pub(super) fn catch_up(&mut self, conn: u32) -> bool {
        let limit = self.limits.frame;
        let Some(this) = self.conn(conn) else { return false };
        // While it is taken out, publishes pass as usual, and the one that can't says so.
        let Some(mut aside) = this.aside.take() else { return true };
        self.late = true;
        let done = aside.frames.again(limit, &mut |data: &[u8], size: usize| self.frame(conn, data, size));
        self.late = false;
        match done {
            Ok(_) if aside.frames.is_empty() => {
                if aside.told {
                    self.flow(conn, 0);
                }
                true
            }
            Ok(_) => {
                if let Some(this) = self.conn(conn) {
                    this.aside = Some(aside);
                }
                false
            }
            Err(fault) => {
                self.fail(conn, &fault);
                false
            }
        }
    }

    /// How many messages a connection that has ended had set aside.
    pub(super) fn forget_aside(&self, aside: Option<Box<Aside>>) -> u64 {
        let mut lost = 0;
        if let Some(mut aside) = aside {
            let _ = aside.frames.again(self.limits.frame, &mut |data: &[u8], size: usize| {
                lost += u64::from(data[4] == kind::PUBLISH);
                Ok((Flow::Go, size))
            });
        }
        lost
    }
}
