//! What a subscription asks for, to hold it against messages that are kept or stored: a pattern and rules.

use crate::matching::regex::{Pattern, PREFIX};
use crate::matching::rules::{Outcome, Rules, Seen};
use crate::matching::topic;
use crate::wire::fields::Fields;
use crate::wire::frame::Checked;

#[derive(Debug)]
pub struct Selection {
    pattern: String,
    expression: Option<Pattern>,
    rules: Rules,
}

impl Selection {
    /// From the pattern and the rules of a SUBSCRIBE.
    pub fn new(pattern: &str, rules: &[u8]) -> Checked<Self> {
        let expression = pattern.strip_prefix(PREFIX).map(Pattern::new).transpose()?;
        let pattern = if expression.is_some() { pattern } else { topic::check(pattern)? }.into();
        Ok(Self { pattern, expression, rules: Rules::compile(rules)? })
    }

    /// The one topic it can mean, if it has no wildcards.
    pub fn literal(&self) -> Option<&str> {
        (self.expression.is_none() && !topic::has_wildcard(&self.pattern)).then_some(&*self.pattern)
    }

    /// Whether messages of this topic are asked for.
    pub fn covers(&self, topic: &str) -> bool {
        match &self.expression {
            Some(expression) => expression.matches(topic),
            None => topic::meet(&self.pattern, topic),
        }
    }

    /// Whether nothing but the topic matters.
    pub fn is_plain(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether a message is asked for, its topic aside; `seen` gets its fields, as it was sent.
    pub fn holds(&self, fields: &[u8], seen: &Seen<'_>) -> bool {
        Fields::read(fields).is_ok_and(|fields| {
            self.is_plain() || self.rules.hold(&Seen { fields: &fields, ..*seen }) == Outcome::Holds
        })
    }
}
