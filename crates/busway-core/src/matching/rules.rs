//! The rules of a subscription: compiled once, evaluated for every message that matches its pattern.
//!
//! All rules must match. Equalities are separate, so that the engine finds subscriptions by them; the other rules are
//! evaluated in the order of their cost.

use std::borrow::Cow;

use regex::{Regex, RegexBuilder};

use crate::matching::cel::{Expression, Subject};
use crate::matching::glob::Glob;
use crate::wire::fields::{bad_name, Fields, Pair};
use crate::wire::frame::{code, Checked, Fault};
use crate::wire::msgpack::{content, head, next, normal, skip, text as text_of, write_head, Head};

/// The maximum number of rules of a subscription, and their size on the wire.
const RULES: usize = 64;
const SIZE: usize = 64 << 10;
/// The maximum size of a compiled regular expression, and the longest text that it is matched with.
pub(crate) const REGEX_SIZE: usize = 256 << 10;
const REGEX_TEXT: usize = 128 << 10;
const DFA_SIZE: usize = 64 << 10;

/// A message as rules read it.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    pub fields: &'a Fields<'a>,
    pub topic: &'a str,
    /// Name of the sender, may be empty.
    pub sender: &'a str,
    pub session: u64,
    /// UTC, nanoseconds since 1970.
    pub time: i64,
    pub payload: &'a [u8],
}

impl<'a> Seen<'a> {
    /// The value of `.id`: the sender's name, or its session if it has none.
    pub fn sender_name(&self) -> Cow<'a, str> {
        match self.sender {
            "" => Cow::Owned(format!("{:016x}", self.session)),
            name => Cow::Borrowed(name),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Holds,
    Fails,
    /// No match, and counted: an expression failed, or a text was too long.
    Error,
}

impl From<bool> for Outcome {
    fn from(yes: bool) -> Self {
        if yes {
            Self::Holds
        } else {
            Self::Fails
        }
    }
}

#[derive(Debug)]
enum Name {
    Field(Box<str>),
    Sender,
    Time,
    Payload,
    /// The whole message, for expressions.
    Whole,
}

/// In the order of evaluation.
#[derive(Debug)]
enum Test {
    Any,
    /// The normal form; for the payload its bytes.
    Equal(Box<[u8]>),
    OneOf(OneOf),
    Glob(Glob),
    Regex(Box<Regex>),
    Expression(Box<Expression>),
}

#[derive(Debug, Default)]
pub struct Rules {
    equalities: Box<[Pair]>,
    rest: Box<[(Name, Test)]>,
    /// All names that a message may have; None: any.
    names: Option<Box<[Box<str>]>>,
}

impl Rules {
    /// Compiles the rules of SUBSCRIBE; no bytes are no rules.
    pub fn compile(bytes: &[u8]) -> Checked<Self> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        if bytes.len() > SIZE {
            return Err(fault(format!("rules have {} bytes, {SIZE} are allowed", bytes.len())));
        }
        if !matches!(skip(bytes, 0), Ok([])) {
            return Err(fault("rules are not one sound MessagePack map"));
        }
        let mut wanted: Vec<(&str, Name, Test)> = Vec::new();
        let mut extra = None;
        let Some((Head::Map(size), mut rest)) = head(bytes) else { return Err(fault("rules are not a map")) };
        for _ in 0..size {
            let (key, value) = next(rest);
            let (value, after) = next(value);
            rest = after;
            match text_of(key) {
                Some("where") => {
                    let rules = items(value).ok_or_else(|| fault("\"where\" is not a list of rules"))?;
                    if rules.len() > RULES {
                        return Err(fault(format!("{} rules, {RULES} are allowed", rules.len())));
                    }
                    wanted = rules.into_iter().map(rule).collect::<Checked<_>>()?;
                }
                Some("extra") => extra = names(value)?,
                other => return Err(fault(format!("rules have an unknown key {other:?}"))),
            }
        }
        let names = extra.map(|mut extra| {
            let own = wanted.iter().filter(|(_, name, _)| matches!(name, Name::Field(_))).map(|(name, ..)| *name);
            extra.extend(own);
            extra.sort_unstable();
            extra.dedup();
            extra.into_iter().map(Box::from).collect()
        });
        let mut equalities: Vec<Pair> = Vec::new();
        let mut rest = Vec::new();
        for (_, name, test) in wanted {
            match (name, test) {
                // A second value for the same field stays a test, which can't match.
                (Name::Field(name), Test::Equal(value)) if !equalities.iter().any(|(other, _)| *other == name) => {
                    equalities.push((name, value));
                }
                other => rest.push(other),
            }
        }
        equalities.sort_unstable();
        rest.sort_by_key(|(_, test)| test.cost());
        Ok(Self { equalities: equalities.into(), rest: rest.into(), names })
    }

    /// Fields that must have a value, with its normal form, sorted by name; each name once.
    pub fn equalities(&self) -> &[Pair] {
        &self.equalities
    }

    /// True if there are no rules but equalities.
    pub fn is_plain(&self) -> bool {
        self.rest.is_empty() && self.names.is_none()
    }

    /// The approximate cost of the other rules, in steps of a regular expression on a topic.
    pub fn weight(&self) -> usize {
        let steps = |test: &Test| match test {
            Test::Expression(_) => 500,
            Test::Regex(_) => 50,
            _ => 10,
        };
        2 + self.rest.iter().map(|(_, test)| steps(test)).sum::<usize>()
    }

    /// True if there are no rules.
    pub fn is_empty(&self) -> bool {
        self.is_plain() && self.equalities.is_empty()
    }

    pub fn hold(&self, seen: &Seen<'_>) -> Outcome {
        let equal = |(name, value): &Pair| seen.fields.get(name).is_some_and(|found| same(found, value));
        if self.equalities.iter().all(equal) {
            self.hold_rest(seen)
        } else {
            Outcome::Fails
        }
    }

    /// Evaluates all rules but the equalities.
    pub fn hold_rest(&self, seen: &Seen<'_>) -> Outcome {
        if let Some(names) = &self.names {
            if !seen.fields.iter().all(|(name, _)| names.binary_search_by(|other| (**other).cmp(name)).is_ok()) {
                return Outcome::Fails;
            }
        }
        let outcomes = self.rest.iter().map(|(name, test)| test.holds(name, seen));
        outcomes.into_iter().find(|outcome| *outcome != Outcome::Holds).unwrap_or(Outcome::Holds)
    }
}

impl Test {
    fn cost(&self) -> u8 {
        match self {
            Self::Any => 0,
            Self::Equal(_) => 1,
            Self::OneOf(_) => 2,
            Self::Glob(_) => 3,
            Self::Regex(_) => 4,
            Self::Expression(_) => 5,
        }
    }

    fn holds(&self, name: &Name, seen: &Seen<'_>) -> Outcome {
        match name {
            Name::Field(name) => match seen.fields.get(name) {
                None => Outcome::Fails,
                Some(value) => match self {
                    Self::Any => Outcome::Holds,
                    Self::Equal(wanted) => same(value, wanted).into(),
                    Self::OneOf(list) => list.has(&normal(value)).into(),
                    Self::Expression(expression) => expression.holds(seen, Subject::Packed(value)),
                    Self::Glob(_) | Self::Regex(_) => text_of(value).map_or(Outcome::Fails, |text| self.text(text)),
                },
            },
            Name::Sender => {
                let sender = seen.sender_name();
                match self {
                    Self::Expression(expression) => expression.holds(seen, Subject::Text(&sender)),
                    Self::Equal(_) | Self::OneOf(_) => self.packed(Head::Str(sender.len()), sender.as_bytes()),
                    _ => self.text(&sender),
                }
            }
            Name::Time => match self {
                Self::Expression(expression) => expression.holds(seen, Subject::Time(seen.time)),
                _ => self.packed(u64::try_from(seen.time).map_or(Head::Int(seen.time), Head::Uint), &[]),
            },
            Name::Payload => match self {
                Self::Any => Outcome::Holds,
                Self::Equal(wanted) => (seen.payload == &**wanted).into(),
                Self::OneOf(list) => list.has(seen.payload).into(),
                _ => match std::str::from_utf8(seen.payload) {
                    Err(_) => Outcome::Fails,
                    Ok(text) => match self {
                        Self::Expression(expression) => expression.holds(seen, Subject::Text(text)),
                        _ => self.text(text),
                    },
                },
            },
            Name::Whole => match self {
                Self::Expression(expression) => expression.holds(seen, Subject::None),
                _ => Outcome::Fails,
            },
        }
    }

    fn text(&self, text: &str) -> Outcome {
        match self {
            Self::Glob(glob) => glob.matches(text).map_or(Outcome::Error, Outcome::from),
            Self::Regex(_) if text.len() > REGEX_TEXT => Outcome::Error,
            Self::Regex(regex) => regex.is_match(text).into(),
            _ => Outcome::Holds,
        }
    }

    fn packed(&self, head: Head, rest: &[u8]) -> Outcome {
        let mut value = Vec::with_capacity(9 + rest.len());
        write_head(head, &mut value);
        value.extend_from_slice(rest);
        match self {
            Self::Equal(wanted) => (value == **wanted).into(),
            Self::OneOf(list) => list.has(&value).into(),
            _ => Outcome::Holds,
        }
    }
}

/// True if a value has this normal form.
#[inline]
fn same(value: &[u8], wanted: &[u8]) -> bool {
    value == wanted || *normal(value) == *wanted
}

/// Values, of which one must be equal; a list must be equal to all of them.
#[derive(Debug)]
struct OneOf {
    /// The normal form of all values as a list.
    list: Box<[u8]>,
    /// The range of each value in that list, sorted by value.
    items: Box<[(u32, u32)]>,
}

impl OneOf {
    fn new(list: &[u8], payload: bool) -> Checked<Self> {
        let list: Box<[u8]> = normal(list).into();
        let all = items(&list).ok_or_else(|| fault("\"in\" takes a list"))?;
        let start = list.as_ptr() as usize;
        let mut items = Vec::with_capacity(all.len());
        for item in all {
            let item = if payload { content(item).ok_or_else(not_bytes)? } else { item };
            let from = item.as_ptr() as usize - start;
            items.push((from as u32, (from + item.len()) as u32));
        }
        items.sort_unstable_by_key(|(from, to)| &list[*from as usize..*to as usize]);
        Ok(Self { items: items.into(), list })
    }

    fn has(&self, value: &[u8]) -> bool {
        if matches!(head(value), Some((Head::List(_), _))) {
            return *value == *self.list;
        }
        self.items.binary_search_by_key(&value, |(from, to)| &self.list[*from as usize..*to as usize]).is_ok()
    }
}

/// Parses a rule `[name, op, argument]`.
fn rule(bytes: &[u8]) -> Checked<(&str, Name, Test)> {
    let parts = items(bytes).unwrap_or_default();
    let [name, op, argument] = parts[..] else { return Err(fault("a rule is not a list [name, op, argument]")) };
    let (Some(text), Some(op)) = (text_of(name), text_of(op)) else {
        return Err(fault("name and op of a rule are text"));
    };
    let what = if text.is_empty() { "the expression".into() } else { format!("rule for {text:?}") };
    let at = |reason: String| fault(format!("{what}: {reason}"));
    let name = match text {
        ".id" => Name::Sender,
        ".ts" => Name::Time,
        "msg" => Name::Payload,
        "" if op == "cel" => Name::Whole,
        _ => match bad_name(text) {
            Some(reason) => return Err(at(format!("a field that {reason}"))),
            None => Name::Field(text.into()),
        },
    };
    let argument_text = || text_of(argument).ok_or_else(|| at(format!("{op:?} takes a text")));
    let payload = matches!(name, Name::Payload);
    if matches!(op, "glob" | "re") && matches!(name, Name::Time) {
        return Err(at(format!("{op:?} is for text, and .ts is a number")));
    }
    let asked = match op {
        "any" if matches!(head(argument), Some((Head::Nil, _))) => Test::Any,
        "any" => return Err(at("\"any\" takes nil".into())),
        "eq" if payload => Test::Equal(content(argument).ok_or_else(not_bytes)?.into()),
        "eq" => Test::Equal(normal(argument).into()),
        "in" => Test::OneOf(OneOf::new(argument, payload).map_err(|fault| at(fault.text))?),
        "glob" => Test::Glob(Glob::new(argument_text()?)),
        "re" => Test::Regex(whole_regex(argument_text()?).map_err(|error| at(error.to_string()))?.into()),
        "cel" => {
            let subject = !matches!(name, Name::Whole);
            Test::Expression(Expression::new(argument_text()?, subject).map_err(at)?.into())
        }
        other => return Err(at(format!("unknown op {other:?}"))),
    };
    Ok((text, name, asked))
}

/// An expression that must match the whole text.
fn whole_regex(expression: &str) -> Result<Regex, regex::Error> {
    let build = |text: &str| RegexBuilder::new(text).size_limit(REGEX_SIZE).dfa_size_limit(DFA_SIZE).build();
    // Compiled alone first, so that an unbalanced bracket can't close the group around it.
    build(expression)?;
    build(&format!(r"\A(?:{expression})\z"))
}

/// The items of a list.
fn items(bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let (Head::List(size), mut rest) = head(bytes)? else { return None };
    let item = |_| {
        let (item, after) = next(rest);
        rest = after;
        item
    };
    Some((0..size).map(item).collect())
}

/// The names in "extra"; None: any.
fn names(value: &[u8]) -> Checked<Option<Vec<&str>>> {
    if matches!(head(value), Some((Head::Nil, _))) {
        return Ok(None);
    }
    let names = items(value).and_then(|names| names.into_iter().map(text_of).collect());
    names.map(Some).ok_or_else(|| fault("\"extra\" is neither nil nor a list of names"))
}

fn not_bytes() -> Fault {
    fault("the payload is compared with text or bytes")
}

fn fault(text: impl Into<String>) -> Fault {
    Fault::new(code::INVALID_RULE, text)
}

#[cfg(test)]
mod tests;
