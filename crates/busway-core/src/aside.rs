//! What a publisher has sent while it has to wait, in order.

use crate::split::Splitter;

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
