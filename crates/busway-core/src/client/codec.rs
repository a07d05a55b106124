//! The client's codec: encodes the frames that a client sends, and decodes the broker's frames.

use crate::log::record::Record;
use crate::matching::topic;
use crate::wire::frame::{code, flag, kind, Body, Checked, Fault, Parts, Writer, HEAD, MAGIC, VERSION};
use crate::wire::slots::{Numbers, Slot};

/// The limits from the broker's WELCOME that apply to frames of a client.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub frame: usize,
    pub topic: usize,
    pub fields: usize,
    pub topics: usize,
}

/// The parts of a message besides its topic and payload.
#[derive(Debug, Clone, Copy, Default)]
pub struct More<'a> {
    pub flags: u8,
    pub aux: u32,
    /// Per-provider limit of a request, in units of 10 ms.
    pub each: u16,
    pub time: i64,
    pub fields: &'a [u8],
    /// The number of a message that is sent again; 0: a new message.
    pub number: u64,
    /// When a stored message expires, and when it is due; 0: never, at once.
    pub times: (i64, i64),
}

/// Encodes a client's frames into a buffer that the driver empties.
#[derive(Debug)]
pub struct Outgoing {
    pub out: Vec<u8>,
    pub limits: Limits,
    topics: Numbers<Box<str>>,
    number: u64,
}

impl Outgoing {
    /// Limits before WELCOME: enough for a handshake.
    const FIRST: Limits = Limits { frame: 1 << 20, topic: 1024, fields: 65536, topics: 1 };

    pub fn new() -> Self {
        Self { out: Vec::new(), limits: Self::FIRST, topics: Numbers::new(1), number: 0 }
    }

    /// Resets the state of the last connection. Numbers continue.
    pub fn reset(&mut self) {
        self.out.clear();
        self.open(Self::FIRST);
    }

    pub fn open(&mut self, limits: Limits) {
        self.limits = limits;
        self.topics = Numbers::new(limits.topics);
    }

    /// Skips all numbers up to this one.
    pub fn skip(&mut self, number: u64) {
        self.number = self.number.max(number);
    }

    fn next(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// Returns the slot of a topic. A new topic is checked and announced to the broker.
    pub fn slot(&mut self, name: &str) -> Checked<u32> {
        if let Some(slot) = self.topics.get(name) {
            return Ok(slot);
        }
        if name.len() > self.limits.topic {
            let text = format!("topic of {} bytes, the limit is {}", name.len(), self.limits.topic);
            return Err(Fault::new(code::TOPIC_TOO_LONG, text));
        }
        let checked = topic::check(name)?;
        // Keyed by the caller's spelling, so that a leading slash costs nothing per message.
        match self.topics.slot(&name.into()) {
            Slot::Known(slot) => Ok(slot),
            Slot::Filled(slot, _) => {
                Writer::new(&mut self.out, kind::TOPIC, 0).u16(0).u32(slot).bytes(checked.as_bytes()).end();
                Ok(slot)
            }
        }
    }

    pub fn fits(&self, payload: usize, fields: usize) -> Checked<()> {
        if fields > self.limits.fields {
            let text = format!("fields of {fields} bytes, the broker's limit is {}", self.limits.fields);
            return Err(Fault::new(code::FIELDS_TOO_LARGE, text));
        }
        let size = HEAD + 16 + payload + fields + 4 * usize::from(fields > 0);
        if size > self.limits.frame {
            let text = format!("message of {size} bytes with its frame, the broker's limit is {}", self.limits.frame);
            return Err(Fault::new(code::FRAME_TOO_LARGE, text));
        }
        Ok(())
    }

    /// Encodes PUBLISH, PUSH or REQUEST, and returns its number. `payload` must fit.
    #[inline]
    pub fn message(&mut self, kind: u8, slot: u32, more: More, payload: &[u8]) -> u64 {
        let number = if more.number == 0 { self.next() } else { more.number };
        let fields = if more.fields.is_empty() { 0 } else { 4 + more.fields.len() };
        let mut head = [0; HEAD + 16];
        let timed = more.times != (0, 0);
        let size = HEAD + 12 + fields + payload.len() + 16 * usize::from(timed);
        head[..4].copy_from_slice(&(size as u32).to_le_bytes());
        head[4] = kind;
        head[5] = more.flags | if fields == 0 { 0 } else { flag::FIELDS } | if timed { flag::TIMES } else { 0 };
        head[6..8].copy_from_slice(&more.each.to_le_bytes());
        head[8..12].copy_from_slice(&slot.to_le_bytes());
        head[12..16].copy_from_slice(&more.aux.to_le_bytes());
        head[16..24].copy_from_slice(&more.time.to_le_bytes());
        head[24..32].copy_from_slice(&number.to_le_bytes());
        self.out.extend_from_slice(&head);
        if fields > 0 {
            self.out.extend_from_slice(&(more.fields.len() as u32).to_le_bytes());
            self.out.extend_from_slice(more.fields);
        }
        self.out.extend_from_slice(payload);
        if timed {
            self.out.extend_from_slice(&more.times.0.to_le_bytes());
            self.out.extend_from_slice(&more.times.1.to_le_bytes());
        }
        number
    }

    pub fn hello(&mut self, map: &[u8]) {
        Writer::new(&mut self.out, kind::HELLO, 0).u16(VERSION).bytes(MAGIC).bytes(map).end();
    }

    /// Answers a CHALLENGE.
    pub fn login(&mut self, map: &[u8]) {
        Writer::new(&mut self.out, kind::LOGIN, 0).u16(0).bytes(map).end();
    }

    pub fn reply(&mut self, call: u64, code: u16, flags: u8, fields: &[u8], payload: &[u8]) -> Checked<()> {
        self.fits(payload.len(), fields.len())?;
        let flags = flags | if code == 0 { 0 } else { flag::ERROR };
        if fields.is_empty() {
            Writer::new(&mut self.out, kind::REPLY, flags).u16(code).u64(call).bytes(payload).end();
        } else {
            let frame = Writer::new(&mut self.out, kind::REPLY, flags | flag::FIELDS).u16(code).u64(call);
            frame.bin32(fields).bytes(payload).end();
        }
        Ok(())
    }

    pub fn cancel(&mut self, number: u64) {
        Writer::new(&mut self.out, kind::CANCEL, 0).u16(0).u64(number).end();
    }

    pub fn answer_offer(&mut self, offer: u64, code: u16) {
        Writer::new(&mut self.out, kind::ACCEPT, 0).u16(code).u64(offer).end();
    }

    #[allow(clippy::too_many_arguments)] // the parts of the frame
    pub fn subscribe(
        &mut self,
        sub: u32,
        pattern: &str,
        group: &str,
        flags: u8,
        policy: u8,
        rules: &[u8],
        since: &[u8],
    ) -> Checked<u64> {
        for text in [pattern, group] {
            if text.len() > self.limits.topic {
                let text = format!("pattern or group of {} bytes, the limit is {}", text.len(), self.limits.topic);
                return Err(Fault::new(code::TOPIC_TOO_LONG, text));
            }
        }
        let number = self.next();
        let frame = Writer::new(&mut self.out, kind::SUBSCRIBE, flags).u8(policy).u8(0).u32(sub).u64(number);
        let frame = frame.str16(pattern).str16(group).bin32(rules);
        if flags & flag::SINCE == 0 {
            frame.end();
        } else {
            frame.bin32(since).end();
        }
        Ok(number)
    }

    /// Encodes a frame about a channel, and returns its number.
    pub fn channel(&mut self, kind: u8, id: u32, rest: &[u8]) -> u64 {
        let number = self.next();
        Writer::new(&mut self.out, kind, 0).u16(0).u32(id).u64(number).bytes(rest).end();
        number
    }

    pub fn serve(&mut self, service: u32, topic: &str, flags: u8) -> Checked<u64> {
        if topic.len() > self.limits.topic {
            let text = format!("topic of {} bytes, the limit is {}", topic.len(), self.limits.topic);
            return Err(Fault::new(code::TOPIC_TOO_LONG, text));
        }
        let number = self.next();
        Writer::new(&mut self.out, kind::SERVE, flags).u16(0).u32(service).u64(number).str16(topic).end();
        Ok(number)
    }

    /// Encodes UNSUBSCRIBE or UNSERVE.
    pub fn end(&mut self, kind: u8, id: u32) -> u64 {
        let number = self.next();
        Writer::new(&mut self.out, kind, 0).u16(0).u32(id).u64(number).end();
        number
    }

    /// Encodes HOLD: whether there is no room for a subscription's messages.
    pub fn hold(&mut self, sub: u32, full: bool, taken: u64) {
        let flags = if full { flag::FULL } else { 0 };
        Writer::new(&mut self.out, kind::HOLD, flags).u16(0).u32(sub).u64(taken).end();
    }

    /// Encodes PING or PONG.
    pub fn beat(&mut self, kind: u8, token: u64) {
        Writer::new(&mut self.out, kind, 0).u64(token).end();
    }

    pub fn close(&mut self, code: u16, text: &str) {
        Writer::new(&mut self.out, kind::CLOSE, 0).u16(code).bytes(text.as_bytes()).end();
    }
}

impl Default for Outgoing {
    fn default() -> Self {
        Self::new()
    }
}

/// A decoded frame of the broker.
#[derive(Debug)]
pub enum Incoming<'a> {
    Welcome { version: u16, map: &'a [u8] },
    Challenge(&'a [u8]),
    Close { code: u16, text: &'a str },
    Ping(u64),
    Pong(u64),
    Away,
    Servers { apart: bool, list: &'a [u8] },
    Flow { stop: bool },
    Topic { slot: u32, text: &'a str },
    Sender { slot: u32, session: u64, name: &'a str },
    Deliver(Delivery<'a>),
    Offer(Delivery<'a>),
    Call(Delivery<'a>),
    Ask(Delivery<'a>),
    Reply { code: u16, flags: u8, number: u64, fields: &'a [u8], payload: &'a [u8] },
    Missed { sub: u32, count: u64 },
    Stream { level: u16, stream: u32, guid: &'a [u8], name: &'a str },
    Stored { stream: u32, number: u64, count: u32, offset: u64, sequence: u64, again: bool },
    Record(Box<Stored<'a>>),
    Gap { sub: u32, stream: u32, from: u64, to: u64 },
    Ended { id: u32, code: u16, text: &'a str },
    Withdraw { sub: u32, session: u64, number: u64 },
    Result { code: u16, number: u64, value: u64, text: &'a str },
}

/// A stored message.
#[derive(Debug)]
pub struct Stored<'a> {
    ids: &'a [u8],
    pub stream: u32,
    /// How often a channel has delivered it.
    pub deliveries: u32,
    pub flags: u8,
    pub record: Record<'a>,
}

impl<'a> Stored<'a> {
    const HEAD: usize = 20;

    /// The common part of a run that begins with this frame: kind, flags, one id, stream, deliveries and that id.
    #[inline]
    pub fn head(frame: &[u8]) -> Option<u128> {
        let head = frame.get(4..)?.first_chunk()?;
        (head[2..4] == [1, 0]).then(|| u128::from_le_bytes(*head))
    }

    /// Bytes and record of the next frame of a run, if it is complete and needs no other check.
    #[inline]
    pub fn next(head: u128, data: &'a [u8], limit: usize) -> Option<(usize, Record<'a>)> {
        let first = data.first_chunk::<{ Stored::HEAD }>()?;
        let size = u32::from_le_bytes(*first.first_chunk()?) as usize + 4;
        if u128::from_le_bytes(*first[4..].first_chunk()?) != head || size > limit {
            return None;
        }
        let record = Record::read(data.get(Self::HEAD..size)?)?;
        (record.bytes.len() == size - Self::HEAD).then_some((size, record))
    }

    pub fn id(&self) -> u32 {
        self.ids().next().unwrap_or(0)
    }

    pub fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.ids.chunks_exact(4).map(|id| u32::from_le_bytes([id[0], id[1], id[2], id[3]]))
    }
}

#[derive(Debug)]
pub struct Delivery<'a> {
    /// `u32` each: subscriptions, or a single service.
    ids: &'a [u8],
    pub topic: u32,
    pub sender: u32,
    /// The number of the offer or call, 0 for a plain delivery.
    pub answer: u64,
    pub flags: u8,
    pub body: Body<'a>,
}

impl Delivery<'_> {
    pub fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.ids.chunks_exact(4).map(|id| u32::from_le_bytes([id[0], id[1], id[2], id[3]]))
    }

    pub fn id(&self) -> u32 {
        self.ids().next().unwrap_or(0)
    }
}

/// A run of deliveries without fields to one subscription, with the same head: kind, flags, slots and subscription.
pub struct Run<'a> {
    pub size: usize,
    pub time: i64,
    pub number: u64,
    pub payload: &'a [u8],
}

impl<'a> Run<'a> {
    const HEAD: usize = 20;
    const BODY: usize = Self::HEAD + 16;

    /// The common part of a run that begins with this frame.
    #[inline]
    pub fn head(frame: &[u8]) -> Option<u128> {
        let head = frame.get(4..)?.first_chunk()?;
        let plain = head[0] == kind::DELIVER && head[1] & !flag::KEEP == 0 && head[2..4] == [1, 0];
        plain.then(|| u128::from_le_bytes(*head))
    }

    /// The next frame of a run, if it is complete and needs no other check.
    #[inline]
    pub fn next(head: u128, data: &'a [u8], limit: usize) -> Option<Self> {
        let first = data.first_chunk::<{ Run::BODY }>()?;
        let size = u32::from_le_bytes(*first.first_chunk()?) as usize + 4;
        if u128::from_le_bytes(*first[4..].first_chunk()?) != head || size < Self::BODY || size > limit {
            return None;
        }
        let payload = data.get(Self::BODY..size)?;
        let time = i64::from_le_bytes(*first[Self::HEAD..].first_chunk()?);
        let number = u64::from_le_bytes(*first[Self::HEAD + 8..].first_chunk()?);
        Some(Self { size, time, number, payload })
    }
}

/// Decodes a complete frame.
pub fn read(frame: &[u8]) -> Checked<Incoming<'_>> {
    let (kind, flags) = (frame[4], frame[5]);
    let mut parts = Parts::of(frame);
    let allowed = match kind {
        kind::DELIVER => !0,
        kind::OFFER | kind::CALL | kind::ASK => flag::FIELDS,
        kind::REPLY => flag::FIELDS | flag::ERROR | flag::PARTIAL | flag::END,
        kind::SERVERS => flag::APART,
        kind::FLOW => flag::STOP,
        kind::RECORD => flag::REPLAY | flag::LAST | flag::CHANNEL | flag::KEEP,
        kind::STORED => flag::AGAIN,
        _ => 0,
    };
    if flags & !allowed != 0 {
        return Err(Fault::protocol(format!("unknown flags {flags:#04x} on a frame of kind {kind:#04x}")));
    }
    Ok(match kind {
        kind::DELIVER | kind::OFFER | kind::CALL | kind::ASK => {
            let count = parts.u16()? as usize;
            let (topic, sender) = (parts.u32()?, parts.u32()?);
            let ids = parts.bytes(4 * count)?;
            let answer = if kind == kind::DELIVER { 0 } else { parts.u64()? };
            if count == 0 || (kind != kind::DELIVER && count != 1) {
                return Err(Fault::protocol(format!("delivery of kind {kind:#04x} for {count} ids")));
            }
            let delivery = Delivery { ids, topic, sender, answer, flags, body: Body::read(parts, flags)? };
            match kind {
                kind::DELIVER => Incoming::Deliver(delivery),
                kind::OFFER => Incoming::Offer(delivery),
                kind::ASK => Incoming::Ask(delivery),
                _ => Incoming::Call(delivery),
            }
        }
        kind::REPLY => {
            let (code, number) = (parts.u16()?, parts.u64()?);
            let fields = if flags & flag::FIELDS == 0 { &[][..] } else { parts.bin32()? };
            // An error always has a code, even if the service gave none.
            let code = if flags & flag::ERROR != 0 && code == 0 { code::HANDLER_ERROR } else { code };
            Incoming::Reply { code, flags, number, fields, payload: parts.rest() }
        }
        kind::TOPIC => {
            parts.u16()?;
            Incoming::Topic { slot: parts.u32()?, text: parts.rest_text()? }
        }
        kind::SENDER => {
            parts.u16()?;
            Incoming::Sender { slot: parts.u32()?, session: parts.u64()?, name: parts.rest_text()? }
        }
        kind::RECORD => {
            let count = parts.u16()? as usize;
            let (stream, deliveries, ids) = (parts.u32()?, parts.u32()?, parts.bytes(4 * count)?);
            let record = Record::read(parts.rest()).filter(|_| count > 0);
            let record = record.ok_or_else(|| Fault::protocol("a stored message that is none"))?;
            Incoming::Record(Box::new(Stored { ids, stream, deliveries, flags, record }))
        }
        kind::STREAM => {
            let (level, stream) = (parts.u16()?, parts.u32()?);
            Incoming::Stream { level, stream, guid: parts.bytes(16)?, name: parts.rest_text()? }
        }
        kind::STORED => {
            parts.u16()?;
            let (stream, number, count) = (parts.u32()?, parts.u64()?, parts.u32()?);
            let (offset, sequence, again) = (parts.u64()?, parts.u64()?, flags & flag::AGAIN != 0);
            Incoming::Stored { stream, number, count, offset, sequence, again }
        }
        kind::GAP => {
            parts.u16()?;
            Incoming::Gap { sub: parts.u32()?, stream: parts.u32()?, from: parts.u64()?, to: parts.u64()? }
        }
        kind::UNCHANNEL => Incoming::Ended { code: parts.u16()?, id: parts.u32()?, text: parts.rest_text()? },
        kind::MISSED => {
            parts.u16()?;
            Incoming::Missed { sub: parts.u32()?, count: parts.u64()? }
        }
        kind::WITHDRAW => {
            parts.u16()?;
            Incoming::Withdraw { sub: parts.u32()?, session: parts.u64()?, number: parts.u64()? }
        }
        kind::RESULT => {
            Incoming::Result { code: parts.u16()?, number: parts.u64()?, value: parts.u64()?, text: parts.rest_text()? }
        }
        kind::WELCOME => Incoming::Welcome { version: parts.u16()?, map: parts.rest() },
        kind::CHALLENGE => {
            parts.u16()?;
            Incoming::Challenge(parts.rest())
        }
        kind::CLOSE => Incoming::Close { code: parts.u16()?, text: parts.rest_text()? },
        kind::PING => Incoming::Ping(parts.u64()?),
        kind::PONG => Incoming::Pong(parts.u64()?),
        kind::AWAY => Incoming::Away,
        kind::SERVERS => {
            parts.u16()?;
            Incoming::Servers { apart: flags & flag::APART != 0, list: parts.rest() }
        }
        kind::FLOW => {
            parts.u16()?;
            Incoming::Flow { stop: flags & flag::STOP != 0 }
        }
        _ => return Err(Fault::protocol(format!("unknown frame kind {kind:#04x}"))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deliver(out: &mut Vec<u8>, flags: u8, sub: u32, payload: &[u8]) {
        Writer::new(out, kind::DELIVER, flags).u16(1).u32(3).u32(4).u32(sub).u64(9).u64(7).bytes(payload).end();
    }

    #[test]
    fn a_run_ends_where_anything_differs() {
        let mut data = Vec::new();
        for (flags, sub) in [(0, 1), (0, 1), (0, 2), (flag::FIELDS, 1)] {
            deliver(&mut data, flags, sub, b"abc");
        }
        let size = data.len() / 4;
        let head = Run::head(&data[..size]).unwrap();
        let run = Run::next(head, &data[size..], 100).unwrap();
        assert_eq!((run.size, run.time, run.number, run.payload), (size, 9, 7, &b"abc"[..]));
        for (from, to, limit) in [(2, 4, 100), (3, 4, 100), (1, 2, size - 1)] {
            assert!(Run::next(head, &data[from * size..to * size], limit).is_none());
        }
        assert!((0..size).all(|cut| Run::next(head, &data[size..size + cut], 100).is_none()));
        assert!(Run::head(&data[3 * size..]).is_none());
    }
}
