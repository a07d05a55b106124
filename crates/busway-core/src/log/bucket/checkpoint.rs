//! Checkpoints: the complete state after a bucket: the last sequence of every topic, publishers, and delayed messages.
//!
//! A checkpoint is written from time to time beside the buckets, as `<offset after the bucket, 20 digits>.all`, since
//! an index has only the changes of its bucket. The last two stay, with the indexes after the older one, also of
//! removed buckets: if one is unreadable, the other and those indexes replace it.
//!
//! ```text
//! offset  size  what
//! 0       8     "BWAYALL1"
//! 8       8     end u64       offset after the last record
//! 16      8     stored i64    when that record was stored
//! 24      8     size u64      bytes of the body
//! 32      4     crc u32       of the body and the first 32 bytes
//! 36      …     body: publishers (see `dedup`), delayed messages (see `delayed`), topics: their number u64, of each the last
//!               sequence, the length of its name (both short), its name
//! ```

use std::io;

use crc32c::{crc32c, crc32c_append};

use crate::log::bucket::dedup::Once;
use crate::log::bucket::delayed::Waiting;
use crate::log::bucket::varint::{Reader, Writer};
use crate::log::bucket::Topics;
use crate::log::files::{rest, Files};

const MAGIC: &[u8; 8] = b"BWAYALL1";
const HEAD: usize = 36;

pub fn whole_name(end: u64) -> String {
    format!("{end:020}.all")
}

#[derive(Debug, Default)]
pub struct Whole {
    pub end: u64,
    pub stored: i64,
    pub topics: Topics,
    pub once: Once,
    pub waiting: Waiting,
}

pub fn write(end: u64, stored: i64, topics: &Topics, once: &Once, waiting: &Waiting) -> Vec<u8> {
    let mut body = Vec::new();
    once.write(0, &mut body);
    waiting.write(&mut body);
    let there = || topics.all.iter().filter(|topic| topic.last > 0);
    body.u64(there().count() as u64);
    for topic in there() {
        body.short(topic.last);
        body.short(topic.text.len() as u64);
        body.extend_from_slice(topic.text.as_bytes());
    }
    let mut out = MAGIC.to_vec();
    out.u64(end);
    out.i64(stored);
    out.u64(body.len() as u64);
    out.extend_from_slice(&crc32c_append(crc32c(&out), &body).to_le_bytes());
    out.extend_from_slice(&body);
    out
}

/// Reads the checkpoint with this offset, if it is valid.
pub fn read(files: &dyn Files, end: u64) -> io::Result<Option<Whole>> {
    let file = files.open(&whole_name(end))?;
    let bytes = rest(&*file, 0, file.size()?)?;
    Ok(parse(&bytes).filter(|whole| whole.end == end))
}

fn parse(bytes: &[u8]) -> Option<Whole> {
    let (head, body) = bytes.split_at_checked(HEAD)?;
    let (words, crc) = head.split_at(32);
    if &words[..8] != MAGIC || crc32c_append(crc32c(words), body).to_le_bytes() != crc {
        return None;
    }
    let words = &mut &words[8..];
    let mut whole = Whole { end: words.u64()?, stored: words.i64()?, ..Whole::default() };
    let mut body = Some(body).filter(|body| words.u64() == Some(body.len() as u64))?;
    whole.once.read(0, &mut body)?;
    whole.waiting = Waiting::read(&mut body)?;
    for _ in 0..body.count(2)? {
        let (last, size) = (body.short()?, body.short()?);
        let text = std::str::from_utf8(body.bytes(usize::try_from(size).ok()?)?).ok()?;
        whole.topics.get(text).last = last;
    }
    body.is_empty().then_some(whole)
}
