//! Blocks as columns: the buffers of Arrow arrays, of those columns only that are asked for.
//!
//! No column has nulls. `topic` and `sender` are dictionaries.

use hashbrown::HashMap;

use super::record::{records, Record, HEAD};
use crate::fields::Fields;
use crate::rules::Seen;
use crate::selection::Selection;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Word(usize),
    Signed(usize),
    Topic,
    Sender,
    Id,
    Fields,
    Payload,
}

const KINDS: [(&str, Kind); 9] = [
    ("offset", Kind::Word(8)),
    ("topic", Kind::Topic),
    ("sequence", Kind::Word(16)),
    ("stored", Kind::Signed(24)),
    ("time", Kind::Signed(32)),
    ("id", Kind::Id),
    ("sender", Kind::Sender),
    ("fields", Kind::Fields),
    ("payload", Kind::Payload),
];

/// Values of any length: where each ends (the first begins at 0), and their bytes.
#[derive(Debug)]
pub struct Values {
    pub ends: Vec<u8>,
    pub bytes: Vec<u8>,
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
}

#[derive(Debug)]
pub enum Column {
    Unsigned(Vec<u8>),
    /// Nanoseconds since 1970.
    Time(Vec<u8>),
    Text(Values),
    Binary(Values),
    /// For each row the number of its value (i32), and the values, which are texts.
    Dictionary(Vec<u8>, Values, usize),
}

/// Texts with a number each.
#[derive(Default)]
struct Texts<'a> {
    numbers: HashMap<&'a str, u32>,
    recent: Option<(&'a str, u32)>,
    rows: Vec<u8>,
    values: Values,
}

impl<'a> Texts<'a> {
    #[inline]
    fn add(&mut self, text: &'a str) {
        let number = match self.recent {
            Some((recent, number)) if recent == text => number,
            _ => {
                let next = self.numbers.len() as u32;
                let number = *self.numbers.entry(text).or_insert_with(|| {
                    self.values.add(text.as_bytes());
                    next
                });
                self.recent = Some((text, number));
                number
            }
        };
        self.rows.extend_from_slice(&number.to_le_bytes());
    }
}

/// What of the blocks is wanted.
pub struct Wanted<'a> {
    pub selection: Option<&'a Selection>,
    /// Offsets.
    pub range: std::ops::Range<u64>,
    /// Records that have expired by then are left out, and those that wait to be due.
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

/// Whether a record is what a subscription asks for.
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

/// The same for one record after the other: mostly the next one has the topic of the last.
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

/// Why there are no columns.
#[derive(Debug, PartialEq, Eq)]
pub enum Problem {
    /// A block ends in the middle of a record, or is none.
    NoBlock,
    UnknownColumn,
    /// More bytes than one array can hold: give fewer blocks.
    TooMuch,
}

/// The columns with these names, and the number of rows.
pub fn columns(blocks: &[&[u8]], names: &[&str], wanted: &Wanted<'_>) -> Result<(usize, Vec<Column>), Problem> {
    let kind = |name: &&str| KINDS.iter().find(|kind| kind.0 == *name).map(|kind| kind.1);
    let kinds: Vec<Kind> = names.iter().map(kind).collect::<Option<_>>().ok_or(Problem::UnknownColumn)?;
    if blocks.iter().map(|block| block.len()).sum::<usize>() > i32::MAX as usize {
        return Err(Problem::TooMuch);
    }
    let mut rows = Vec::new();
    for block in blocks {
        let mut all = records(block);
        rows.reserve(block.len() / (2 * HEAD));
        rows.extend(all.by_ref().filter(|record| wanted.has(record)));
        if !all.rest.is_empty() {
            return Err(Problem::NoBlock);
        }
    }
    Ok((rows.len(), kinds.into_iter().map(|kind| column(kind, &rows)).collect()))
}

fn column(kind: Kind, rows: &[Record<'_>]) -> Column {
    match kind {
        Kind::Word(at) => Column::Unsigned(words(rows, at)),
        Kind::Signed(at) => Column::Time(words(rows, at)),
        Kind::Topic => texts(rows, |record| record.topic),
        Kind::Sender => texts(rows, |record| record.sender),
        Kind::Id => Column::Text(ids(rows)),
        Kind::Fields => Column::Binary(values(rows, |record| record.fields.unwrap_or_default())),
        Kind::Payload => Column::Binary(values(rows, |record| record.payload)),
    }
}

fn words(rows: &[Record<'_>], at: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(8 * rows.len());
    for record in rows {
        out.extend_from_slice(&record.bytes[at..at + 8]);
    }
    out
}

fn values<'a>(rows: &[Record<'a>], of: impl Fn(&Record<'a>) -> &'a [u8]) -> Values {
    let mut out = Values::default();
    out.ends.reserve(4 * rows.len());
    out.bytes.reserve(rows.iter().map(|record| of(record).len()).sum());
    for record in rows {
        out.add(of(record));
    }
    out
}

fn texts<'a>(rows: &[Record<'a>], of: impl Fn(&Record<'a>) -> &'a str) -> Column {
    let mut out = Texts::default();
    out.rows.reserve(4 * rows.len());
    for record in rows {
        out.add(of(record));
    }
    Column::Dictionary(out.rows, out.values, out.numbers.len())
}

/// 32 hexadecimal digits each: session and number.
fn ids(rows: &[Record<'_>]) -> Values {
    let mut out = Values::default();
    out.ends.reserve(4 * rows.len());
    out.bytes.reserve(32 * rows.len());
    let (mut session, mut digits) = (0, [b'0'; 32]);
    for record in rows {
        // Mostly the next one is of the same session.
        if record.session() != session {
            session = record.session();
            write_hex(session, &mut digits[..16]);
        }
        write_hex(record.number(), &mut digits[16..]);
        out.add(&digits);
    }
    out
}

/// A number's 16 digits, eight at a time: each byte of a word becomes one digit.
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

/// A block of those records only that are wanted: its offsets grow, but not by one.
pub fn select(block: &[u8], wanted: &Wanted<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    records(block).filter(|record| wanted.has(record)).for_each(|record| out.extend_from_slice(record.bytes));
    out
}
