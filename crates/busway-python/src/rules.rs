//! The rules of a subscription for Python: to check them before they are sent, and to match retained messages.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use busway_core::matching::rules::{self, Outcome, Seen};
use busway_core::matching::selection;
use busway_core::wire::fields::Fields;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::grants::Grants;
use crate::raised;

/// Compiled rules.
#[pyclass(frozen, module = "busway._core")]
pub struct Rules {
    rules: rules::Rules,
    errors: AtomicU64,
}

#[pymethods]
impl Rules {
    #[new]
    fn new(py: Python<'_>, rules: &[u8]) -> PyResult<Self> {
        // An expression may be compiled on its own thread; other threads should not wait for it.
        let rules = py.detach(|| rules::Rules::compile(rules)).map_err(|fault| raised(py, &fault))?;
        Ok(Self { rules, errors: AtomicU64::new(0) })
    }

    /// True if all rules match a message. A rule that fails to evaluate does not match and counts in `errors`.
    #[pyo3(signature = (topic, fields, payload, sender = "", session = 0, time = 0))]
    fn matches(&self, topic: &str, fields: &[u8], payload: &[u8], sender: &str, session: u64, time: i64) -> bool {
        let outcome = Fields::read(fields).map_or(Outcome::Error, |fields| {
            self.rules.hold(&Seen { fields: &fields, topic, sender, session, time, payload })
        });
        if outcome == Outcome::Error {
            self.errors.fetch_add(1, Relaxed);
        }
        outcome == Outcome::Holds
    }

    /// The rules that compare a field with a value: name and `MessagePack`, sorted by name.
    #[getter]
    fn equalities<'py>(&self, py: Python<'py>) -> Vec<(&str, Bound<'py, PyBytes>)> {
        self.rules.equalities().iter().map(|(name, value)| (&**name, PyBytes::new(py, value))).collect()
    }

    /// How often a rule could not be evaluated.
    #[getter]
    fn errors(&self) -> u64 {
        self.errors.load(Relaxed)
    }
}

/// Raises an error unless these are the fields of a message.
#[pyfunction]
pub fn check_fields(py: Python<'_>, fields: &[u8]) -> PyResult<()> {
    Fields::read(fields).map(|_| ()).map_err(|fault| raised(py, &fault))
}

/// The pattern and rules of a subscription, to match retained messages. With grants it matches only topics on which
/// these allow the verb.
#[pyclass(frozen, module = "busway._core")]
pub struct Selection(pub selection::Selection);

#[pymethods]
impl Selection {
    #[new]
    #[pyo3(signature = (pattern, rules = &[][..], grants = None, verb = 0))]
    fn new(py: Python<'_>, pattern: &str, rules: &[u8], grants: Option<&Grants>, verb: u8) -> PyResult<Self> {
        let made = py.detach(|| selection::Selection::new(pattern, rules)).map_err(|fault| raised(py, &fault))?;
        Ok(Self(match grants {
            Some(grants) => made.guarded(grants.0.clone(), verb),
            None => made,
        }))
    }

    /// Its topic, if the pattern has no wildcards.
    #[getter]
    fn literal(&self) -> Option<&str> {
        self.0.literal()
    }

    /// True if the pattern matches this topic.
    fn covers(&self, topic: &str) -> bool {
        self.0.covers(topic)
    }

    /// True if a message matches.
    #[pyo3(signature = (topic, fields, payload, sender = "", session = 0, time = 0))]
    fn matches(&self, topic: &str, fields: &[u8], payload: &[u8], sender: &str, session: u64, time: i64) -> bool {
        let seen = Seen { fields: &Fields::default(), topic, sender, session, time, payload };
        self.0.covers(topic) && self.0.holds(fields, &seen)
    }
}
