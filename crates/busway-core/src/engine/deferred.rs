//! Deferred publishes: the publishes of a blocked connection are set aside while its other frames are processed, since
//! another client may wait for one of these. A block that is due to a crowded outbox is mostly short, so at first the
//! engine only stops reading from the publisher.

use super::{Engine, Event};
use crate::wire::frame::{flag, kind, Writer};
use crate::wire::splitter::{Flow, Splitter};

/// Bytes set aside from which on the client is told to stop; it is not told for short waits.
const AHEAD: usize = 256 << 10;
/// Bytes set aside above which the engine stops reading from the connection.
const MOST: usize = 4 << 20;

#[derive(Debug, Default)]
pub struct Deferred {
    pub frames: Splitter,
    /// FLOW with STOP was sent to the client.
    pub stop_sent: bool,
}

impl Deferred {
    pub fn bytes(&self) -> usize {
        self.frames.len()
    }

    pub fn is_full(&self) -> bool {
        self.bytes() > MOST
    }

    /// True if the client must be told to stop now.
    pub fn tell(&mut self) -> bool {
        self.bytes() > AHEAD && !std::mem::replace(&mut self.stop_sent, true)
    }
}

impl Engine {
    /// Sets a frame aside if earlier ones wait.
    pub(super) fn defer(&mut self, conn: u32, frame: &[u8]) -> bool {
        let Some(deferred) = self.conn(conn).and_then(|this| this.deferred.as_mut()) else { return false };
        deferred.frames.hold(frame);
        let full = deferred.is_full();
        if deferred.tell() {
            self.flow(conn, flag::STOP);
        }
        if full {
            // The client continues to publish after FLOW with STOP.
            self.events.push(Event::Pause(conn));
        }
        true
    }

    /// After a tick, reads again from connections that were blocked before it.
    pub(super) fn read_on(&mut self) {
        for by in self.slow().collect::<Vec<_>>() {
            let waiters = self.conn(by).map_or_else(Vec::new, |this| this.waiters.clone());
            for conn in waiters {
                let Some(this) = self.conn(conn).filter(|this| this.blocked_by == Some(by) && this.deferred.is_none())
                else {
                    continue;
                };
                if std::mem::replace(&mut this.waited, true) {
                    this.deferred = Some(Box::default());
                    self.events.push(Event::Read(conn));
                    self.run(conn, None);
                }
            }
        }
    }

    /// FLOW: whether the client may publish.
    fn flow(&mut self, conn: u32, flags: u8) {
        self.put(conn, |out| {
            Writer::new(out, kind::FLOW, flags).u16(0).end();
        });
    }

    /// Connections with publishes that are set aside.
    pub fn waiting(&self) -> Vec<u32> {
        let all = self.conns.iter().enumerate().filter_map(|(i, conn)| Some((i as u32, conn.as_ref()?)));
        all.filter(|(_, conn)| conn.deferred.is_some()).map(|(i, _)| i).collect()
    }

    /// Processes publishes that were set aside; true: none is left.
    pub(super) fn catch_up(&mut self, conn: u32) -> bool {
        let limit = self.limits.frame;
        let Some(this) = self.conn(conn) else { return false };
        // While they are taken out, publishes pass as usual, and the first blocked one stops the loop.
        let Some(mut deferred) = this.deferred.take() else { return true };
        self.late = true;
        let done = deferred.frames.again(limit, &mut |data: &[u8], size: usize| self.frame(conn, data, size));
        self.late = false;
        match done {
            Ok(_) if deferred.frames.is_empty() => {
                if deferred.stop_sent {
                    self.flow(conn, 0);
                }
                true
            }
            Ok(_) => {
                if let Some(this) = self.conn(conn) {
                    this.deferred = Some(deferred);
                }
                false
            }
            Err(fault) => {
                self.fail(conn, &fault);
                false
            }
        }
    }

    /// The number of messages that a closed connection had set aside.
    pub(super) fn count_deferred(&self, deferred: Option<Box<Deferred>>) -> u64 {
        let mut lost = 0;
        if let Some(mut deferred) = deferred {
            let _ = deferred.frames.again(self.limits.frame, &mut |data: &[u8], size: usize| {
                lost += u64::from(data[4] == kind::PUBLISH);
                Ok((Flow::Go, size))
            });
        }
        lost
    }
}
