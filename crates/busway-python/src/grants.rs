//! The grants of users for Python: the policy compiles them, the engine and the doors ask them.

use std::sync::Arc;

use busway_core::matching::grants::{self, Decision};
use busway_core::matching::regex::PREFIX;
use busway_core::matching::topic;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::raised;

/// Bits of verbs, and a pattern.
type Pairs = Vec<(u16, String)>;

/// The compiled grants of one role, which its users share.
#[pyclass(frozen, module = "busway._core")]
pub struct GrantSet(Arc<grants::GrantSet>);

#[pymethods]
impl GrantSet {
    #[new]
    fn new(py: Python<'_>, allow: Pairs, deny: Pairs) -> PyResult<Self> {
        let made = grants::GrantSet::new(&allow, &deny).map_err(|fault| raised(py, &fault))?;
        Ok(Self(Arc::new(made)))
    }
}

/// All grants of one user.
#[pyclass(frozen, module = "busway._core")]
pub struct Grants(pub Arc<grants::Grants>);

impl Grants {
    /// Checks a verb and a topic or pattern; returns the topic without its leading slash, None if it is invalid.
    fn checked(verb: u8, requested: &str) -> PyResult<Option<&str>> {
        if usize::from(verb) >= grants::VERBS.len() {
            return Err(PyValueError::new_err(format!("no verb has the number {verb}")));
        }
        Ok(if requested.starts_with(PREFIX) { Some(requested) } else { topic::check(requested).ok() })
    }
}

#[pymethods]
impl Grants {
    #[new]
    fn new(sets: Vec<PyRef<'_, GrantSet>>) -> Self {
        Self(Arc::new(grants::Grants::new(sets.iter().map(|set| set.0.clone()).collect())))
    }

    /// True if the verb is allowed on a whole topic or pattern; False for an invalid one.
    fn may(&self, verb: u8, requested: &str) -> PyResult<bool> {
        Ok(Self::checked(verb, requested)?.is_some_and(|requested| self.0.may(verb, requested)))
    }

    /// The decision as "allowed", "filtered", "denied", "missing" or "complex", with set and number of the grant.
    fn decide(&self, verb: u8, requested: &str) -> PyResult<(&'static str, usize, usize)> {
        let decision = Self::checked(verb, requested)?.map(|requested| self.0.decide(verb, requested));
        Ok(match decision.unwrap_or(Decision::Missing) {
            Decision::Allowed(set, number) => ("allowed", set, number),
            Decision::Denied(set, number) => ("denied", set, number),
            Decision::Filtered => ("filtered", 0, 0),
            Decision::Missing => ("missing", 0, 0),
            Decision::TooComplex => ("complex", 0, 0),
        })
    }

    /// True if one of these verbs (bits) is allowed on some topic of a pattern.
    fn touches(&self, verbs: u16, requested: &str) -> bool {
        topic::check(requested).is_ok_and(|requested| self.0.touches(verbs, requested))
    }
}
