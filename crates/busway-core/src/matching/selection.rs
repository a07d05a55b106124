//! The pattern and rules of a subscription, to select retained or stored messages.

use std::sync::Arc;

use crate::matching::grants::Grants;
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
    /// The grants of the user, and the verb that they must allow on a topic.
    guard: Option<(Arc<Grants>, u8)>,
}

impl Selection {
    /// Compiles the pattern and the rules of a SUBSCRIBE.
    pub fn new(pattern: &str, rules: &[u8]) -> Checked<Self> {
        let expression = pattern.strip_prefix(PREFIX).map(Pattern::new).transpose()?;
        let pattern = if expression.is_some() { pattern } else { topic::check(pattern)? }.into();
        Ok(Self { pattern, expression, rules: Rules::compile(rules)?, guard: None })
    }

    /// Selects only topics on which these grants allow a verb.
    #[must_use]
    pub fn guarded(mut self, grants: Arc<Grants>, verb: u8) -> Self {
        self.guard = Some((grants, verb));
        self
    }

    /// Its topic, if the pattern has no wildcards.
    pub fn literal(&self) -> Option<&str> {
        (self.expression.is_none() && !topic::has_wildcard(&self.pattern)).then_some(&*self.pattern)
    }

    /// True if the pattern matches this topic, and the user may know it.
    pub fn covers(&self, topic: &str) -> bool {
        let matches = match &self.expression {
            Some(expression) => expression.matches(topic),
            None => topic::meet(&self.pattern, topic),
        };
        matches && self.guard.as_ref().is_none_or(|(grants, verb)| grants.may(*verb, topic))
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
