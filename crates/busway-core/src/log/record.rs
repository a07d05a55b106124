//! The binary format of a stored message, and blocks: consecutive complete records.
//!
//! All integers are little-endian.
//!
//! ```text
//! offset  size  what
//! 0       4     size      u32   bytes after this field
//! 4       4     crc       u32   CRC-32C of the bytes after this field
//! 8       8     offset    u64   place in the stream
//! 16      8     sequence  u64   place in its topic, from 1; 0: it is delayed, and does not count in its topic yet
//! 24      8     stored    i64   when the broker stored it, never less than that of the record before
//! 32      8     time      i64   when it was sent, by the sender's clock
//! 40      8     session   u64   with the number the id of the message
//! 48      8     number    u64
//! 56      8     expires   i64   0: never
//! 64      8     due       i64   0: at once; with a sequence: it was delayed, and appended again when it was due
//! 72      4     fields    u32   bytes of the fields
//! 76      2     topic     u16   bytes of the topic
//! 78      1     sender    u8    bytes of the sender's name
//! 79      1     flags     u8    FIELDS 1, GROUP 2; the upper six bits: UNSURE
//! 80      …     topic, sender, fields (a MessagePack map), payload (the rest)
//! ```
//! Times are UTC, nanoseconds since 1970. GROUP marks the first record of a write: all records before it had the
//! configured safety when it was written, except for at most the last 2^UNSURE - 1, which still waited for a mirror.

use crc32c::crc32c;

/// Bytes before the topic.
pub const HEAD: usize = 80;
/// The maximum size of a record in bytes.
pub const MOST: usize = 1 << 30;

pub mod flag {
    pub const FIELDS: u8 = 1;
    pub const GROUP: u8 = 2;
}

/// The lowest bit of UNSURE in the flags.
const UNSURE: u32 = 2;

/// A message to store.
#[derive(Debug, Clone, Copy, Default)]
pub struct Message<'a> {
    pub topic: &'a str,
    /// Name of the sender, may be empty.
    pub sender: &'a str,
    pub time: i64,
    /// 0: the message can't have duplicates.
    pub session: u64,
    pub number: u64,
    pub expires: i64,
    pub due: i64,
    pub fields: Option<&'a [u8]>,
    pub payload: &'a [u8],
}

impl Message<'_> {
    /// The size of its record in bytes; None: it is too large.
    pub fn size(&self) -> Option<usize> {
        let size =
            HEAD + self.topic.len() + self.sender.len() + self.fields.map_or(0, <[u8]>::len) + self.payload.len();
        (self.topic.len() <= 0xffff && self.sender.len() <= 0xff && size <= MOST).then_some(size)
    }

    /// Appends the record. The caller has checked the size.
    pub fn encode(&self, offset: u64, sequence: u64, stored: i64, out: &mut Vec<u8>) {
        let fields = self.fields.unwrap_or_default();
        let mut head = [0; HEAD];
        for (at, value) in [(8, offset), (16, sequence), (40, self.session), (48, self.number)] {
            head[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        for (at, value) in [(24, stored), (32, self.time), (56, self.expires), (64, self.due)] {
            head[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        head[72..76].copy_from_slice(&(fields.len() as u32).to_le_bytes());
        head[76..78].copy_from_slice(&(self.topic.len() as u16).to_le_bytes());
        head[78] = self.sender.len() as u8;
        head[79] = if self.fields.is_some() { flag::FIELDS } else { 0 };
        let start = out.len();
        out.extend_from_slice(&head);
        out.extend_from_slice(self.topic.as_bytes());
        out.extend_from_slice(self.sender.as_bytes());
        out.extend_from_slice(fields);
        out.extend_from_slice(self.payload);
        close(&mut out[start..]);
    }
}

/// Writes the size and checksum of a record.
fn close(record: &mut [u8]) {
    let size = (record.len() - 4) as u32;
    let crc = crc32c(&record[8..]);
    record[..4].copy_from_slice(&size.to_le_bytes());
    record[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// Marks the first record of a block as the first of a write, after `unsure` records without the configured safety.
pub fn mark_group(block: &mut [u8], unsure: u64) {
    if let Some(size) = size(block) {
        let digits = (u64::BITS - unsure.leading_zeros()).min(63) as u8;
        // A block whose write failed is marked again.
        block[79] = block[79] & flag::FIELDS | flag::GROUP | digits << UNSURE;
        close(&mut block[..size]);
    }
}

/// The size of the record at the start, if the size is valid and the record complete.
#[inline]
pub fn size(bytes: &[u8]) -> Option<usize> {
    let size = wanted(bytes)?;
    (size <= bytes.len()).then_some(size)
}

/// The size of the record at the start; None: the size is incomplete or not valid.
#[inline]
pub fn wanted(bytes: &[u8]) -> Option<usize> {
    let size = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?) as usize + 4;
    (HEAD..=MOST).contains(&size).then_some(size)
}

#[inline]
fn word(bytes: &[u8], at: usize) -> [u8; 8] {
    bytes[at..at + 8].try_into().expect("eight bytes")
}

/// The offset of the record at the start.
#[inline]
pub fn offset(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(word(bytes, 8))
}

/// A record with valid lengths.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    pub bytes: &'a [u8],
    pub topic: &'a str,
    pub sender: &'a str,
    pub fields: Option<&'a [u8]>,
    pub payload: &'a [u8],
}

impl<'a> Record<'a> {
    /// The record at the start, without verifying its checksum.
    #[inline]
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let bytes = &bytes[..size(bytes)?];
        let fields = u32::from_le_bytes(bytes[72..76].try_into().ok()?) as usize;
        let topic = usize::from(u16::from_le_bytes([bytes[76], bytes[77]]));
        let (topic, rest) = bytes[HEAD..].split_at_checked(topic)?;
        let (sender, rest) = rest.split_at_checked(usize::from(bytes[78]))?;
        let (fields, payload) = rest.split_at_checked(fields)?;
        let (topic, sender) = (std::str::from_utf8(topic).ok()?, std::str::from_utf8(sender).ok()?);
        let has = bytes[79] & flag::FIELDS != 0;
        (has || fields.is_empty()).then_some(Self { bytes, topic, sender, fields: has.then_some(fields), payload })
    }

    /// The record at the start, with a verified checksum.
    #[inline]
    pub fn sound(bytes: &'a [u8]) -> Option<Self> {
        let size = size(bytes)?;
        let crc = u32::from_le_bytes(bytes[4..8].try_into().ok()?);
        if crc32c(&bytes[8..size]) == crc {
            Self::read(bytes)
        } else {
            None
        }
    }

    /// The eight bytes at an offset of the head.
    #[inline]
    pub fn word(&self, at: usize) -> [u8; 8] {
        word(self.bytes, at)
    }

    pub fn offset(&self) -> u64 {
        offset(self.bytes)
    }

    pub fn sequence(&self) -> u64 {
        u64::from_le_bytes(word(self.bytes, 16))
    }

    pub fn stored(&self) -> i64 {
        i64::from_le_bytes(word(self.bytes, 24))
    }

    pub fn time(&self) -> i64 {
        i64::from_le_bytes(word(self.bytes, 32))
    }

    pub fn session(&self) -> u64 {
        u64::from_le_bytes(word(self.bytes, 40))
    }

    pub fn number(&self) -> u64 {
        u64::from_le_bytes(word(self.bytes, 48))
    }

    pub fn expires(&self) -> i64 {
        i64::from_le_bytes(word(self.bytes, 56))
    }

    pub fn due(&self) -> i64 {
        i64::from_le_bytes(word(self.bytes, 64))
    }

    /// True if it is delayed. Nobody receives it: when it is due, it is appended again.
    #[inline]
    pub fn is_parked(&self) -> bool {
        self.sequence() == 0
    }

    /// True if it is the second record of a delayed message.
    pub fn is_released(&self) -> bool {
        self.due() != 0 && !self.is_parked()
    }

    /// True if it is delayed or expired, so that nobody receives it.
    #[inline]
    pub fn is_hidden(&self, now: i64) -> bool {
        let expires = self.expires();
        self.is_parked() || (expires != 0 && expires <= now)
    }

    /// For the first record of a write: everything before this offset had the configured safety then.
    pub fn sure(&self) -> Option<u64> {
        let flags = self.bytes[79];
        let unsure = (1_u64 << (flags >> UNSURE)) - 1;
        (flags & flag::GROUP != 0).then(|| self.offset().saturating_sub(unsure))
    }

    /// The stored message.
    pub fn message(&self) -> Message<'a> {
        Message {
            topic: self.topic,
            sender: self.sender,
            time: self.time(),
            session: self.session(),
            number: self.number(),
            expires: self.expires(),
            due: self.due(),
            fields: self.fields,
            payload: self.payload,
        }
    }
}

/// The records of a block, up to the first with invalid lengths.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    pub rest: &'a [u8],
}

pub fn records(block: &[u8]) -> Records<'_> {
    Records { rest: block }
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let record = Record::read(self.rest)?;
        self.rest = &self.rest[record.bytes.len()..];
        Some(record)
    }
}

/// The first valid record after a bad one at `at`, and its position; its offset is from `expected` to below `limit`.
pub fn behind(bytes: &[u8], at: usize, expected: u64, limit: u64) -> Option<(usize, u64)> {
    // Few bytes look like such an offset, so that few checksums have to be computed.
    let most = expected.saturating_add((bytes.len() - at) as u64 + (1 << 20)).min(limit);
    let fits = |at: usize| {
        let rest = bytes.get(at..).filter(|rest| rest.len() >= HEAD)?;
        let found = offset(rest);
        ((expected..most).contains(&found) && Record::sound(rest).is_some()).then_some((at, found))
    };
    // Try the size in the bad record first: a payload may contain the bytes of a record.
    let next = wanted(&bytes[at..]).and_then(|size| fits(at + size));
    next.or_else(|| (at + 1..bytes.len().saturating_sub(HEAD - 1)).find_map(fits))
}
