//! The pattern and rules of a subscription, to select retained or stored messages.

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
    /// Compiles the pattern and the rules of a SUBSCRIBE.
    pub fn new(pattern: &str, rules: &[u8]) -> Checked<Self> {
        let expression = pattern.strip_prefix(PREFIX).map(Pattern::new).transpose()?;
        let pattern = if expression.is_some() { pattern } else { topic::check(pattern)? }.into();
        Ok(Self { pattern, expression, rules: Rules::compile(rules)? })
    }

    /// Its topic, if the pattern has no wildcards.
    pub fn literal(&self) -> Option<&str> {
        (self.expression.is_none() && !topic::has_wildcard(&self.pattern)).then_some(&*self.pattern)
    }

    /// True if the pattern matches this topic.
    pub fn covers(&self, topic: &str) -> bool {
        match &self.expression {
            Some(expression) => expression.matches(topic),
            None => topic::meet(&self.pattern, topic),
        }
    }

    /// True if there are no rules.
    pub fn is_plain(&self) -> bool {
        self.rules.is_empty()
    }

    /// True if the rules match a message; `seen` gets its fields as they were sent.
    pub fn holds(&self, fields: &[u8], seen: &Seen<'_>) -> bool {
        Fields::read(fields).is_ok_and(|fields| {
            self.is_plain() || self.rules.hold(&Seen { fields: &fields, ..*seen }) == Outcome::Holds
        })
    }
}
