//! The stored log of a stream: records with consecutive offsets from 0, and for each topic a sequence from 1 without
//! gaps.
//!
//! `record` is the format, `files` the file system, and `bucket` a file of the log with its index. `append` is the
//! appending side and `writer` its thread; `read` and `block` are the reading side, `columns` for Arrow and `readonly`
//! for the log of another process. `recover` opens a log after a crash, `repair` fills holes from a mirror, `replica`
//! is a mirror's copy of a log, and `retention` removes old buckets. A stream in memory is the same log on files in
//! memory, without indexes and thread; with `write_behind` a database stores the records.

pub mod append;
pub mod block;
pub mod bucket;
pub mod columns;
pub mod files;
pub mod read;
mod readonly;
pub mod record;
mod recover;
mod repair;
pub mod replica;
pub mod retention;
pub mod write_behind;
mod writer;

/// When a record counts as safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Safety {
    /// As soon as the broker has it in memory.
    Memory,
    /// When the operating system has it: it survives the end of the broker.
    #[default]
    Written,
    /// When the disk has it: it survives a power cut.
    Synced,
}

/// The settings of a log. Ages are nanoseconds; a maximum of 0 is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    pub safety: Safety,
    pub bucket_bytes: u64,
    pub bucket_age: i64,
    pub max_age: i64,
    pub max_bytes: u64,
    pub max_count: u64,
    /// No record from this offset on is removed, whatever the limits are.
    pub hold: u64,
    /// No record before this offset is needed any more: the writer removes its bucket when it completes a later one.
    pub keep_from: u64,
    /// How long the messages of a publisher are remembered, to detect duplicates.
    pub once_age: i64,
    /// The maximum delay of a message.
    pub max_delay: i64,
    /// Bytes that may wait to be written.
    pub pending_bytes: usize,
}

const SECOND: i64 = 1_000_000_000;

impl Default for Settings {
    fn default() -> Self {
        Self {
            safety: Safety::default(),
            bucket_bytes: 64 << 20,
            bucket_age: 3600 * SECOND,
            max_age: 24 * 3600 * SECOND,
            max_bytes: 0,
            max_count: 0,
            hold: u64::MAX,
            keep_from: 0,
            once_age: 15 * 60 * SECOND,
            max_delay: 0,
            pending_bytes: 16 << 20,
        }
    }
}

impl Settings {
    /// The size and age of a bucket: whole buckets are removed, so there should be several within the limits.
    fn bucket(&self) -> (u64, u64) {
        let part = |most: u64, least: u64| if most == 0 { u64::MAX } else { (most / 8).max(least) };
        (self.bucket_bytes.min(part(self.max_bytes, 64 << 10)), part(self.max_count, 256))
    }
}

/// Data that is missing or corrupt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    pub file: String,
    pub position: u64,
    /// The range of lost records; None: the number after the first is unknown.
    pub from: u64,
    pub to: Option<u64>,
    pub what: &'static str,
}

#[derive(Debug)]
pub enum Error {
    /// Another process has opened it.
    InUse,
    Io(std::io::Error),
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InUse => out.write_str("it is in use by another broker; give each its own folder"),
            Self::Io(error) => error.fmt(out),
        }
    }
}

/// Why a message was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// Too many bytes wait to be written: retry when `safe` has advanced.
    Full,
    /// A duplicate that is so old that it is not known whether it was stored.
    TooOld,
    /// A topic, a name or the whole message is too long for a record.
    TooLarge,
    /// It is due so late that retention would remove it before.
    TooLate,
    /// The last write failed; the log retries soon.
    Failed(String),
    /// The owner of the log refuses new records, with this reason.
    NoSpace(String),
}

/// The position of a stored message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    pub offset: u64,
    pub sequence: u64,
    /// It is a duplicate, and was not stored again.
    pub again: bool,
}
