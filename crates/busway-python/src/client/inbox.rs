//! The inbox of a subscription for Python.

use std::cell::{Ref, RefCell, RefMut};
use std::rc::Rc;

use busway_core::client::inbox::Inbox as Messages;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::bytes::Attached;
use crate::message::{copy, Message};

/// The messages of a subscription, shared by the session that adds them and the user that takes them.
pub type Shared = Rc<RefCell<Messages<Message>>>;

/// Messages that have arrived for a subscription and were not taken yet.
#[pyclass(frozen, module = "busway._core")]
pub struct Inbox(pub Attached<Shared>);

impl Inbox {
    fn messages(&self) -> Ref<'_, Messages<Message>> {
        self.0 .0.borrow()
    }

    fn change(&self) -> RefMut<'_, Messages<Message>> {
        self.0 .0.borrow_mut()
    }
}

#[pymethods]
impl Inbox {
    fn take<'py>(&self, py: Python<'py>, most: usize) -> PyResult<Bound<'py, PyList>> {
        let mut messages = self.change();
        let mut taken = Vec::with_capacity(most.min(messages.len()));
        while taken.len() < most {
            let Some((message, missed)) = messages.pop() else { break };
            taken.push(if missed == 0 { message } else { copy(py, &message, missed, 0)? });
        }
        drop(messages);
        PyList::new(py, taken)
    }

    fn __len__(&self) -> usize {
        self.messages().len()
    }

    #[getter]
    fn bytes(&self) -> usize {
        self.messages().bytes()
    }

    #[getter]
    fn missed(&self) -> u64 {
        self.messages().missed
    }

    #[getter]
    fn received(&self) -> u64 {
        self.messages().received
    }

    /// It has exceeded its limit, and does not have enough room again.
    #[getter]
    fn full(&self) -> bool {
        self.messages().is_full()
    }
}
