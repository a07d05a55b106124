//! The rules of a subscription for Python: to check them before they are sent, and to ask them of kept messages.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use busway_core::matching::rules::{self, Outcome, Seen};
use busway_core::matching::selection;
use busway_core::wire::fields::Fields;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

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
        // An expression may be compiled on a thread of its own; nobody else should wait for that.
        let rules = py.detach(|| rules::Rules::compile(rules)).map_err(|fault| raised(py, &fault))?;
        Ok(Self { rules, errors: AtomicU64::new(0) })
    }

    /// Whether all rules hold for a message; what goes wrong is no match and counted in `errors`.
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

    /// The rules that ask a field to equal a value: name and `MessagePack`, sorted by name.
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

/// Raises if these are not the fields of a message.
#[pyfunction]
pub fn check_fields(py: Python<'_>, fields: &[u8]) -> PyResult<()> {
    Fields::read(fields).map(|_| ()).map_err(|fault| raised(py, &fault))
}

/// What a subscription asks for, to hold it against messages that are kept.
#[pyclass(frozen, module = "busway._core")]
pub struct Selection(pub selection::Selection);

#[pymethods]
impl Selection {
    #[new]
    #[pyo3(signature = (pattern, rules = &[][..]))]
    fn new(py: Python<'_>, pattern: &str, rules: &[u8]) -> PyResult<Self> {
        py.detach(|| selection::Selection::new(pattern, rules)).map(Self).map_err(|fault| raised(py, &fault))
    }

    /// The one topic it can mean, if it has no wildcards.
    #[getter]
    fn literal(&self) -> Option<&str> {
        self.0.literal()
    }

    /// Whether messages of this topic are asked for.
    fn covers(&self, topic: &str) -> bool {
        self.0.covers(topic)
    }

    /// Whether this message is asked for.
    #[pyo3(signature = (topic, fields, payload, sender = "", session = 0, time = 0))]
    fn matches(&self, topic: &str, fields: &[u8], payload: &[u8], sender: &str, session: u64, time: i64) -> bool {
        let seen = Seen { fields: &Fields::default(), topic, sender, session, time, payload };
        self.0.covers(topic) && self.0.holds(fields, &seen)
    }
}
