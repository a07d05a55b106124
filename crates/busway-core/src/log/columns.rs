//! Records as columns: builds the buffers of Arrow arrays for the requested columns. Python calls it for
//! `busway.arrow`.
//!
//! No column has nulls.

use hashbrown::HashTable;

use super::bucket::hash;
use super::record::{records, Record, HEAD};
use crate::matching::rules::Seen;
use crate::matching::selection::Selection;
use crate::wire::fields::Fields;

/// The parts of a record with variable length.
#[derive(Debug, Clone, Copy)]
enum Part {
    Topic,
    Sender,
    Fields,
    Payload,
}

impl Part {
    #[inline]
    fn of<'a>(self, record: &Record<'a>) -> &'a [u8] {
        match self {
            Self::Topic => record.topic.as_bytes(),
            Self::Sender => record.sender.as_bytes(),
            Self::Fields => record.fields.unwrap_or_default(),
            Self::Payload => record.payload,
        }
    }
}

/// Values of variable length: the end of each (the first begins at 0), and their bytes.
#[derive(Debug)]
struct Values {
    ends: Vec<u8>,
    bytes: Vec<u8>,
}

impl Default for Values {
    fn default() -> Self {
        Self { ends: vec![0; 4], bytes: Vec::new() }
    }
}

impl Values {
    #[inline]
    fn add(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.ends.extend_from_slice(&(self.bytes.len() as u32).to_le_bytes());
    }

    /// The value with this index.
    #[inline]
    fn get(&self, number: u32) -> &[u8] {
        let at = 4 * number as usize;
        let end = |at: usize| u32::from_le_bytes(self.ends[at..at + 4].try_into().expect("four bytes")) as usize;
        &self.bytes[end(at)..end(at + 4)]
    }
}

/// Distinct texts, and the index of each row's text (i32).
#[derive(Debug, Default)]
struct Texts {
    rows: Vec<u8>,
    values: Values,
    table: HashTable<u32>,
    recent: Option<u32>,
}

impl Texts {
    #[inline]
    fn add(&mut self, text: &[u8]) {
        let number = match self.recent {
            Some(recent) if self.values.get(recent) == text => recent,
            _ => self.number(text),
        };
        self.recent = Some(number);
        self.rows.extend_from_slice(&number.to_le_bytes());
    }

    fn number(&mut self, text: &[u8]) -> u32 {
        let (hashed, values) = (hash(text), &self.values);
        if let Some(&known) = self.table.find(hashed, |&number| values.get(number) == text) {
            return known;
        }
        let number = self.table.len() as u32;
        self.values.add(text);
        let values = &self.values;
        self.table.insert_unique(hashed, number, |&number| hash(values.get(number)));
        number
    }
}

/// The type of a column, and its buffers.
pub type Made = (&'static str, Vec<Vec<u8>>);

/// A column under construction, with its source in a record: an offset of eight bytes, or a part.
#[derive(Debug)]
enum Column {
    Unsigned(usize, Vec<u8>),
    Signed(usize, Vec<u8>),
    /// Since 1970.
    Nanoseconds(usize, Vec<u8>),
    Microseconds(usize, Vec<u8>),
    Text(Part, Values),
    Binary(Part, Values),
    Dictionary(Part, Texts),
    /// 32 hexadecimal digits: session and number. The session of the last row, and its digits.
    Id(Values, u64, [u8; 32]),
}

impl Column {
    /// The column with this name. `plain`: signed numbers, microseconds and texts; otherwise unsigned numbers,
    /// nanoseconds and dictionaries.
    fn new(name: &str, plain: bool) -> Option<Self> {
        let number = |at| if plain { Self::Signed(at, Vec::new()) } else { Self::Unsigned(at, Vec::new()) };
        let time = |at| if plain { Self::Microseconds(at, Vec::new()) } else { Self::Nanoseconds(at, Vec::new()) };
        let text = |part| {
            if plain {
                Self::Text(part, Values::default())
            } else {
                Self::Dictionary(part, Texts::default())
            }
        };
        Some(match name {
            "offset" => number(8),
            "topic" => text(Part::Topic),
            "sequence" => number(16),
            "stored" => time(24),
            "time" => time(32),
            "id" => Self::Id(Values::default(), 0, [b'0'; 32]),
            "sender" => text(Part::Sender),
            "fields" => Self::Binary(Part::Fields, Values::default()),
            "payload" => Self::Binary(Part::Payload, Values::default()),
            _ => return None,
        })
    }

    /// Reserves space for more rows.
    fn reserve(&mut self, rows: usize) {
        match self {
            Self::Unsigned(_, out) | Self::Signed(_, out) | Self::Nanoseconds(_, out) | Self::Microseconds(_, out) => {
                out.reserve(8 * rows);
            }
            Self::Text(_, out) | Self::Binary(_, out) => out.ends.reserve(4 * rows),
            Self::Dictionary(_, out) => out.rows.reserve(4 * rows),
            Self::Id(out, ..) => {
                out.ends.reserve(4 * rows);
                out.bytes.reserve(32 * rows);
            }
        }
    }

    #[inline]
    fn add(&mut self, record: &Record<'_>) {
        match self {
            Self::Unsigned(at, out) | Self::Signed(at, out) | Self::Nanoseconds(at, out) => {
                out.extend_from_slice(&record.word(*at));
            }
            Self::Microseconds(at, out) => {
                out.extend_from_slice(&(i64::from_le_bytes(record.word(*at)) / 1000).to_le_bytes());
            }
            Self::Text(part, out) | Self::Binary(part, out) => out.add(part.of(record)),
            Self::Dictionary(part, out) => out.add(part.of(record)),
            Self::Id(out, session, digits) => {
                // The next record mostly has the same session.
                if record.session() != *session {
                    *session = record.session();
                    write_hex(*session, &mut digits[..16]);
                }
                write_hex(record.number(), &mut digits[16..]);
                out.add(digits);
            }
        }
    }

    fn made(self) -> Made {
        let (kind, mut buffers) = match self {
            Self::Unsigned(_, out) => ("unsigned", vec![out]),
            Self::Signed(_, out) => ("signed", vec![out]),
            Self::Nanoseconds(_, out) => ("nanoseconds", vec![out]),
            Self::Microseconds(_, out) => ("microseconds", vec![out]),
            Self::Text(_, out) | Self::Id(out, ..) => ("text", vec![out.ends, out.bytes]),
            Self::Binary(_, out) => ("binary", vec![out.ends, out.bytes]),
            Self::Dictionary(_, out) => ("dictionary", vec![out.rows, out.values.ends, out.values.bytes]),
        };
        buffers.iter_mut().for_each(Vec::shrink_to_fit);
        (kind, buffers)
    }
}

/// Columns under construction, filled one record after the other.
#[derive(Debug)]
pub struct Columns {
    columns: Vec<Column>,
    rows: usize,
}

impl Columns {
    /// The columns with these names; None: a name is unknown.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>, plain: bool) -> Option<Self> {
        let columns = names.into_iter().map(|name| Column::new(name, plain)).collect::<Option<_>>()?;
        Some(Self { columns, rows: 0 })
    }

    /// Reserves space for records of this many bytes.
    pub fn reserve(&mut self, bytes: usize) {
        self.columns.iter_mut().for_each(|column| column.reserve(bytes / HEAD));
    }

    #[inline]
    pub fn add(&mut self, record: &Record<'_>) {
        self.rows += 1;
        self.columns.iter_mut().for_each(|column| column.add(record));
    }

    /// Adds the matching records of blocks.
    pub fn add_blocks(&mut self, blocks: &[&[u8]], wanted: &Wanted<'_>) -> Result<(), Problem> {
        if blocks.iter().map(|block| block.len()).sum::<usize>() > i32::MAX as usize {
            return Err(Problem::TooMuch);
        }
        for block in blocks {
            self.reserve(block.len());
            let mut all = records(block);
            all.by_ref().filter(|record| wanted.has(record)).for_each(|record| self.add(&record));
            if !all.rest.is_empty() {
                return Err(Problem::NoBlock);
            }
        }
        Ok(())
    }

    /// The number of rows, and the columns in their order.
    pub fn made(self) -> (usize, Vec<Made>) {
        (self.rows, self.columns.into_iter().map(Column::made).collect())
    }
}

/// Why the columns could not be built.
#[derive(Debug, PartialEq, Eq)]
pub enum Problem {
    /// A block ends in the middle of a record, or is not a block.
    NoBlock,
    /// More bytes than an array can hold: pass fewer blocks.
    TooMuch,
}

/// The selection of records in blocks.
pub struct Wanted<'a> {
    pub selection: Option<&'a Selection>,
    /// Offsets.
    pub range: std::ops::Range<u64>,
    /// Delayed records, and records that expired by then, are left out.
    pub now: i64,
}

impl Wanted<'_> {
    #[inline]
    pub fn has(&self, record: &Record<'_>) -> bool {
        self.range.contains(&record.offset())
            && !record.is_hidden(self.now)
            && self.selection.is_none_or(|selection| asked(selection, record))
    }
}

/// True if a record matches a subscription.
pub fn asked(selection: &Selection, record: &Record<'_>) -> bool {
    selection.covers(record.topic) && rules_hold(selection, record)
}

fn rules_hold(selection: &Selection, record: &Record<'_>) -> bool {
    let (topic, sender, payload) = (record.topic, record.sender, record.payload);
    let (session, time) = (record.session(), record.time());
    selection.is_plain()
        || selection.holds(
            record.fields.unwrap_or_default(),
            &Seen { fields: &Fields::default(), topic, sender, session, time, payload },
        )
}

/// Matches consecutive records; the next record mostly has the topic of the last.
pub struct Asking<'a> {
    selection: &'a Selection,
    last: Option<(&'a str, bool)>,
}

impl<'a> Asking<'a> {
    pub fn new(selection: &'a Selection) -> Self {
        Self { selection, last: None }
    }

    #[inline]
    pub fn asked(&mut self, record: &Record<'a>) -> bool {
        let covers = match self.last {
            Some((topic, covers)) if topic == record.topic => covers,
            _ => {
                let covers = self.selection.covers(record.topic);
                self.last = Some((record.topic, covers));
                covers
            }
        };
        covers && rules_hold(self.selection, record)
    }
}

/// The 16 digits of a number, eight at a time: each byte of a word becomes a digit.
fn write_hex(number: u64, digits: &mut [u8]) {
    for (half, out) in [(number >> 32) as u32, number as u32].into_iter().zip(digits.chunks_exact_mut(8)) {
        let mut wide = u64::from(half);
        wide = (wide | wide << 16) & 0x0000_ffff_0000_ffff;
        wide = (wide | wide << 8) & 0x00ff_00ff_00ff_00ff;
        wide = (wide | wide << 4) & 0x0f0f_0f0f_0f0f_0f0f;
        let letters = (wide + 0x0606_0606_0606_0606) >> 4 & 0x0101_0101_0101_0101;
        out.copy_from_slice(&(wide + 0x3030_3030_3030_3030 + letters * 39).to_be_bytes());
    }
}

/// A block of the matching records only: its offsets increase, but not always by one.
pub fn select(block: &[u8], wanted: &Wanted<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    records(block).filter(|record| wanted.has(record)).for_each(|record| out.extend_from_slice(record.bytes));
    out
}
