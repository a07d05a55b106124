//! What has arrived for one subscription, for Python.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use busway_core::frame::policy;
use busway_core::inbox::Inbox as Messages;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::bytes::Attached;
use crate::message::{after, Message};

/// One subscription's messages, and how many inboxes of its session are over their limit.
pub struct Held {
    messages: RefCell<Messages<Message>>,
    full: Rc<Cell<usize>>,
    /// Whether being full makes the client stop reading.
    holds: bool,
}

impl Held {
    pub fn new(messages: usize, bytes: usize, policy: u8, full: &Rc<Cell<usize>>) -> Self {
        let holds = matches!(policy, policy::BLOCK | policy::DISCONNECT);
        Self { messages: RefCell::new(Messages::new(messages, bytes, policy)), full: full.clone(), holds }
    }

    /// Runs a change and keeps the count of full inboxes right.
    pub fn change<R>(&self, change: impl FnOnce(&mut Messages<Message>) -> R) -> R {
        let mut messages = self.messages.borrow_mut();
        let before = messages.is_full();
        let done = change(&mut messages);
        match (before, messages.is_full()) {
            (false, true) if self.holds => self.full.set(self.full.get() + 1),
            (true, false) if self.holds => self.full.set(self.full.get() - 1),
            _ => {}
        }
        done
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.holds && self.messages.borrow_mut().is_full() {
            self.full.set(self.full.get() - 1);
        }
    }
}

/// What has arrived for one subscription and was not taken yet.
#[pyclass(frozen, module = "busway._core")]
pub struct Inbox(pub Attached<Rc<Held>>);

#[pymethods]
impl Inbox {
    fn take<'py>(&self, py: Python<'py>, most: usize) -> PyResult<Bound<'py, PyList>> {
        let mut taken = Vec::new();
        self.0 .0.change(|messages| {
            taken.reserve(most.min(messages.len()));
            while taken.len() < most {
                let Some((message, missed)) = messages.pop() else { break };
                taken.push(if missed == 0 { message } else { after(py, &message, missed)? });
            }
            PyResult::Ok(())
        })?;
        PyList::new(py, taken)
    }

    fn __len__(&self) -> usize {
        self.0 .0.messages.borrow().len()
    }

    #[getter]
    fn bytes(&self) -> usize {
        self.0 .0.messages.borrow().bytes()
    }

    #[getter]
    fn missed(&self) -> u64 {
        self.0 .0.messages.borrow().missed
    }

    #[getter]
    fn received(&self) -> u64 {
        self.0 .0.messages.borrow().received
    }
}
