//! Splits a stream of bytes into complete frames, and keeps the start of an incomplete one.

use crate::wire::frame::{code, Checked, Fault};

/// The capacity that an idle connection keeps.
const IDLE: usize = 4096;

/// How to continue after a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    Go,
    /// This frame is processed; the rest waits.
    Stop,
    /// This frame waits, too.
    Wait,
}

#[derive(Debug, Default)]
pub struct Splitter {
    held: Vec<u8>,
    /// How much of `held` is processed.
    at: usize,
}

/// The size of the frame that `buf` begins with, once its first four bytes have arrived.
fn frame_size(buf: &[u8], limit: usize) -> Checked<Option<usize>> {
    let Some(head) = buf.first_chunk::<4>() else { return Ok(None) };
    let size = u32::from_le_bytes(*head) as usize + 4;
    if size < 6 {
        return Err(Fault::protocol("frame shorter than its kind and flags"));
    }
    if size > limit {
        return Err(Fault::new(code::FRAME_TOO_LARGE, format!("frame of {size} bytes, the limit is {limit}")));
    }
    Ok(Some(size))
}

fn run(
    data: &[u8],
    limit: usize,
    each: &mut impl FnMut(&[u8], usize) -> Checked<(Flow, usize)>,
) -> Checked<(usize, bool)> {
    let mut at = 0;
    while let Some(size) = frame_size(&data[at..], limit)? {
        if data.len() - at < size {
            break;
        }
        match each(&data[at..], size)? {
            (Flow::Go, used) => at += used,
            (Flow::Stop, used) => return Ok((at + used, false)),
            (Flow::Wait, _) => return Ok((at, false)),
        }
    }
    Ok((at, true))
}

impl Splitter {
    pub fn is_empty(&self) -> bool {
        self.at == self.held.len()
    }

    pub fn len(&self) -> usize {
        self.held.len() - self.at
    }

    /// Keeps bytes without processing them.
    pub fn hold(&mut self, data: &[u8]) {
        self.held.extend_from_slice(data);
    }

    /// Drops processed bytes; an idle connection keeps no large buffer.
    fn tidy(&mut self) {
        if !self.is_empty() {
            // Not each time, since it moves the rest.
            if self.at > self.held.len() / 2 {
                self.held.drain(..self.at);
                self.at = 0;
            }
            return;
        }
        if self.held.capacity() > IDLE {
            self.held = Vec::new();
        } else {
            self.held.clear();
        }
        self.at = 0;
    }

    /// Calls `each` with data that begins with a complete frame, and that frame's size. `each` returns how many bytes
    /// it has processed: that frame, or several. If it stops, the rest is kept for `again`.
    pub fn feed(
        &mut self,
        mut data: &[u8],
        limit: usize,
        each: &mut impl FnMut(&[u8], usize) -> Checked<(Flow, usize)>,
    ) -> Checked<bool> {
        // An incomplete frame is completed separately, so that the rest of the data needs no copy.
        while !self.is_empty() {
            let begun = self.held.len() - self.at;
            let want = frame_size(&self.held[self.at..], limit)?.unwrap_or(4);
            let (head, rest) = data.split_at(want.saturating_sub(begun).min(data.len()));
            self.held.extend_from_slice(head);
            data = rest;
            if self.held.len() - self.at < want {
                return Ok(true);
            }
            if want > 4 && !self.again(limit, each)? {
                self.hold(data);
                return Ok(false);
            }
        }
        let (used, go) = run(data, limit, each)?;
        self.hold(&data[used..]);
        Ok(go)
    }

    /// Continues with kept data.
    pub fn again(
        &mut self,
        limit: usize,
        each: &mut impl FnMut(&[u8], usize) -> Checked<(Flow, usize)>,
    ) -> Checked<bool> {
        let (used, go) = run(&self.held[self.at..], limit, each)?;
        self.at += used;
        if go || self.is_empty() {
            self.tidy();
        }
        Ok(go)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::frame::{kind, Writer};

    #[test]
    fn any_cut_gives_the_same_frames() {
        let mut stream = Vec::new();
        let sizes: Vec<usize> =
            (0..9).map(|i| Writer::new(&mut stream, kind::PING, i).bytes(&[i; 9][..i as usize]).end()).collect();
        for step in 1..stream.len() {
            for stop in [false, true] {
                let (mut splitter, mut seen) = (Splitter::default(), Vec::new());
                let mut each = |_: &[u8], size: usize| {
                    seen.push(size);
                    Ok((if stop { Flow::Stop } else { Flow::Go }, size))
                };
                for chunk in stream.chunks(step) {
                    let mut go = splitter.feed(chunk, 100, &mut each).unwrap();
                    while !go {
                        go = splitter.again(100, &mut each).unwrap();
                    }
                }
                assert_eq!(seen, sizes, "{step} {stop}");
                assert!(splitter.is_empty());
            }
        }
    }

    #[test]
    fn impossible_lengths_are_refused() {
        for (bytes, code) in [([1, 0, 0, 0, 4, 0], code::PROTOCOL), ([97, 0, 0, 0, 4, 0], code::FRAME_TOO_LARGE)] {
            for step in [1, 6] {
                let mut splitter = Splitter::default();
                let fault = bytes
                    .chunks(step)
                    .find_map(|chunk| splitter.feed(chunk, 100, &mut |_, size| Ok((Flow::Go, size))).err());
                assert_eq!(fault.map(|fault| fault.code), Some(code));
            }
        }
    }
}
