//! Reports of the engine about topics, for Python.

use std::cell::{RefCell, RefMut};

use busway_core::matching::topic_level as core;
use pyo3::prelude::*;

use crate::bytes::Attached;

/// Segment, number of topics, number of messages, and whether the segment itself ends a topic.
type Row = (String, u64, u64, bool);

/// The topics below a path, by their next segment; `Engine.scan_topics` fills it.
#[pyclass(frozen, module = "busway._core")]
pub struct TopicLevel {
    core: Attached<RefCell<core::TopicLevel>>,
}

impl TopicLevel {
    pub fn core(&self) -> RefMut<'_, core::TopicLevel> {
        self.core.0.borrow_mut()
    }
}

#[pymethods]
impl TopicLevel {
    #[new]
    #[pyo3(signature = (path, *, begins = "", most = 10_000))]
    fn new(path: &str, begins: &str, most: usize) -> Self {
        Self { core: Attached(RefCell::new(core::TopicLevel::new(path, begins, most))) }
    }

    /// The branches in alphabetical order.
    #[getter]
    fn branches(&self) -> Vec<Row> {
        let level = self.core();
        let rows = level.branches.iter();
        let mut rows: Vec<Row> =
            rows.map(|(name, one)| (name.to_string(), one.topics, one.messages, one.leaf)).collect();
        rows.sort_unstable();
        rows
    }

    /// The number of topics and messages beyond the largest number of branches.
    #[getter]
    fn others(&self) -> (u64, u64) {
        let level = self.core();
        (level.others.topics, level.others.messages)
    }
}
