//! A message as Python sees it: one small allocation, with parts that are made when asked for.
//!
//! This is the one object that is made for every message, so it is written against the C interface: a class by macro costs
//! twice as much to make and to free. A small payload lies in the object itself and becomes `bytes` when it is asked for.
//! What Python can ask of it is in `face`.

mod class;

use std::cell::RefCell;
use std::hash::{Hash, Hasher};
use std::ptr;

use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PyString, PyType};

use crate::bytes::Attached;

/// Longest payload that lies in the object.
const INLINE: usize = 384;
/// Objects are made in sizes of so many bytes of payload, so that they can be used again.
const STEP: usize = 64;
/// Objects of each size that are kept for the next messages. A read makes hundreds of them and frees them together; the
/// interpreter would give their memory back to the system each time.
const KEPT: usize = 2048;

static FREE: Attached<RefCell<[Vec<*mut Object>; INLINE / STEP + 1]>> =
    Attached(RefCell::new([const { Vec::new() }; INLINE / STEP + 1]));

/// Places of messages that are gone, for the next ones.
#[allow(clippy::vec_box)] // the boxes are what is kept
static SPARE: Attached<RefCell<Vec<Box<Place>>>> = Attached(RefCell::new(Vec::new()));

/// Who sent a message, shared by all messages of one sender.
pub struct Sender {
    pub name: Py<PyString>,
    pub session: u64,
}

/// What a message is made of.
pub struct Parts<'a> {
    pub topic: &'a Py<PyString>,
    pub from: &'a Sender,
    /// UTC, nanoseconds since 1970.
    pub time: i64,
    pub number: u64,
    /// Kind of the frame that brought it, and its flags.
    pub frame: u8,
    pub flags: u8,
    /// Its fields, as bytes or as a dict.
    pub fields: Option<Py<PyAny>>,
    pub payload: &'a [u8],
    /// Where it is stored.
    pub place: Option<Box<Place>>,
}

/// Where a message is stored. It goes with its message, where nothing of `PyO3` may be dropped, so its references are plain ones.
pub struct Place {
    /// (broker, stream), shared by all messages of a stream.
    stream: *mut ffi::PyObject,
    pub offset: u64,
    pub sequence: u64,
    /// When, UTC, nanoseconds since 1970.
    pub stored: i64,
    /// How often a channel has handed it out.
    pub deliveries: u32,
    /// A weak reference to the channel that wants to hear what became of it, or null.
    owner: *mut ffi::PyObject,
}

impl Place {
    pub fn new(py: Python<'_>, stream: &Py<PyAny>, owner: Option<&Py<PyAny>>, at: (u64, u64, i64, u32)) -> Box<Self> {
        let (offset, sequence, stored, deliveries) = at;
        let owner = owner.map_or(ptr::null_mut(), |owner| owner.clone_ref(py).into_ptr());
        Self { stream: stream.clone_ref(py).into_ptr(), offset, sequence, stored, deliveries, owner }.boxed()
    }

    fn boxed(self) -> Box<Self> {
        match SPARE.0.borrow_mut().pop() {
            Some(mut spare) => {
                *spare = self;
                spare
            }
            None => Box::new(self),
        }
    }

    fn copy(&self) -> Box<Self> {
        // SAFETY: called attached; the copy gets references of its own.
        let (stream, owner) = unsafe { (ffi::Py_NewRef(self.stream), ffi::Py_XNewRef(self.owner)) };
        Self { stream, owner, ..*self }.boxed()
    }

    fn stream<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        // SAFETY: the field holds a reference.
        unsafe { Bound::from_borrowed_ptr(py, self.stream) }
    }

    fn has_owner(&self) -> bool {
        !self.owner.is_null()
    }

    /// Its channel, unless that was dropped.
    fn owner<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        // SAFETY: the field holds a reference, or none.
        let weak: Bound<'py, PyAny> = unsafe { Bound::from_borrowed_ptr_or_opt(py, self.owner) }?;
        weak.call0().ok().filter(|owner| !owner.is_none())
    }
}

#[repr(C)]
struct Object {
    head: ffi::PyVarObject,
    topic: *mut ffi::PyObject,
    sender: *mut ffi::PyObject,
    /// Null until it is asked for, unless it is too long to lie in the object.
    payload: *mut ffi::PyObject,
    /// Null if it has none; bytes until they are asked for, then a dict.
    fields: *mut ffi::PyObject,
    /// Null unless it is a stored one.
    place: *mut Place,
    time: i64,
    session: u64,
    number: u64,
    missed: u64,
    frame: u8,
    flags: u8,
}

/// A message, owned.
pub type Message = Py<PyAny>;

/// Makes a message.
#[inline]
pub fn make(py: Python<'_>, parts: Parts<'_>) -> PyResult<Message> {
    let kind = class(py)?;
    let inline = if parts.payload.len() <= INLINE { parts.payload } else { &[] };
    // SAFETY: the block has room for `inline.len()` items or more, every field of it is written before anybody else sees
    // it, and each stored reference is one of our own.
    unsafe {
        let steps = inline.len().div_ceil(STEP);
        let used = FREE.0.borrow_mut()[steps].pop();
        let block = used.unwrap_or_else(|| ffi::PyObject_Malloc(size_of::<Object>() + steps * STEP).cast());
        if block.is_null() {
            return Err(PyMemoryError::new_err("no memory for a message"));
        }
        ffi::PyObject_InitVar(block.cast(), kind, ffi::Py_ssize_t::try_from(inline.len())?);
        (*block).topic = parts.topic.clone_ref(py).into_ptr();
        (*block).sender = parts.from.name.clone_ref(py).into_ptr();
        (*block).payload = ptr::null_mut();
        if inline.len() < parts.payload.len() {
            (*block).payload = PyBytes::new(py, parts.payload).into_ptr();
        }
        (*block).time = parts.time;
        (*block).session = parts.from.session;
        (*block).number = parts.number;
        (*block).missed = 0;
        (*block).frame = parts.frame;
        (*block).flags = parts.flags;
        (*block).place = parts.place.map_or(ptr::null_mut(), Box::into_raw);
        (*block).fields = parts.fields.map_or(ptr::null_mut(), Py::into_ptr);
        ptr::copy_nonoverlapping(inline.as_ptr(), block.add(1).cast(), inline.len());
        Ok(Bound::from_owned_ptr(py, block.cast()).unbind())
    }
}

/// The same message, told that others went missing before it, or with one flag more.
pub fn copy(py: Python<'_>, message: &Message, missed: u64, flags: u8) -> PyResult<Message> {
    // SAFETY: only `make` makes what is a Message, and `bytes_of` keeps the payload alive in it.
    let object = unsafe { &*message.as_ptr().cast::<Object>() };
    // SAFETY: both fields hold a reference to a str.
    let (topic, name) = unsafe {
        let text = |pointer| Bound::from_borrowed_ptr(py, pointer).cast_into_unchecked::<PyString>().unbind();
        (text(object.topic), text(object.sender))
    };
    let from = Sender { name, session: object.session };
    let (payload, frame, flags) = (bytes_of(py, message.as_ptr()), object.frame, object.flags | flags);
    // SAFETY: the field holds a reference, or none.
    let fields = unsafe { Bound::from_borrowed_ptr_or_opt(py, object.fields) }.map(Bound::unbind);
    let (time, number) = (object.time, object.number);
    // SAFETY: the field holds a place of its own, or none.
    let place = unsafe { object.place.as_ref() }.map(Place::copy);
    let parts = Parts { topic: &topic, from: &from, time, number, frame, flags, fields, payload, place };
    let copy = make(py, parts)?;
    // SAFETY: made just now, nobody else has it.
    unsafe { (*copy.as_ptr().cast::<Object>()).missed = missed };
    Ok(copy)
}

/// A message's id; who keeps it and its topic go into the hash: posts belong to a session, pins to a name.
pub fn identify(py: Python<'_>, message: &Message, pin: bool, hasher: &mut impl Hasher) -> (u64, u64) {
    // SAFETY: only `make` makes what is a Message, whose text fields hold a str.
    let (object, name, topic) = unsafe {
        let object = &*message.as_ptr().cast::<Object>();
        let text = |pointer| Bound::from_borrowed_ptr(py, pointer).cast_into_unchecked::<PyString>();
        (object, text(object.sender), text(object.topic))
    };
    if pin {
        name.to_str().ok().hash(hasher);
    } else {
        object.session.hash(hasher);
    }
    (pin, topic.to_str().ok()).hash(hasher);
    (object.session, object.number)
}

/// Whether this is the message that this session gave this number.
pub fn is(message: &Message, session: u64, number: u64) -> bool {
    // SAFETY: only `make` makes what is a Message.
    let object = unsafe { &*message.as_ptr().cast::<Object>() };
    object.session == session && object.number == number
}

/// The place of what may be a message; None: it is no stored one.
fn place_in<'a>(py: Python<'_>, object: &'a Bound<'_, PyAny>) -> PyResult<Option<&'a Place>> {
    if object.get_type_ptr() != class(py)? {
        return Ok(None);
    }
    // SAFETY: only `make` makes what is a Message, and it lives as long as the reference.
    Ok(place_of(unsafe { &*object.as_ptr().cast::<Object>() }))
}

/// How far these messages go in each stream: (broker, stream) and the offset behind the last.
#[pyfunction]
pub fn furthest<'py>(py: Python<'py>, messages: &Bound<'py, PyList>) -> PyResult<Vec<(Bound<'py, PyAny>, u64)>> {
    let mut found: Vec<(*mut ffi::PyObject, u64)> = Vec::new();
    for message in messages {
        let Some(place) = place_in(py, &message)? else { continue };
        let next = place.offset + 1;
        match found.iter_mut().rev().find(|(stream, _)| *stream == place.stream) {
            Some((_, most)) => *most = next.max(*most),
            None => found.push((place.stream, next)),
        }
    }
    // SAFETY: the messages are alive, and so are their streams.
    Ok(found.into_iter().map(|(stream, next)| (unsafe { Bound::from_borrowed_ptr(py, stream) }, next)).collect())
}

/// Offsets of a stream, as (first, how many).
type Runs<'py> = (Bound<'py, PyAny>, Vec<(u64, u64)>);

/// The offsets of messages that a channel delivered, in their order, by (broker, stream); None: one is not of it. `channel` is
/// the weak reference that `Session.own` got.
#[pyfunction]
pub fn handed<'py>(
    py: Python<'py>,
    messages: &Bound<'py, PyAny>,
    channel: &Bound<'py, PyAny>,
) -> PyResult<Option<Vec<Runs<'py>>>> {
    let mut found: Vec<Runs<'py>> = Vec::new();
    for message in messages.try_iter()? {
        let message = message?;
        let Some(place) = place_in(py, &message)?.filter(|place| place.owner == channel.as_ptr()) else {
            return Ok(None);
        };
        let at = found.iter().rposition(|(stream, _)| stream.as_ptr() == place.stream).unwrap_or(found.len());
        if at == found.len() {
            // SAFETY: the message is alive, and so is its stream.
            found.push((unsafe { Bound::from_borrowed_ptr(py, place.stream) }, Vec::new()));
        }
        match found[at].1.last_mut() {
            Some((first, count)) if *first + *count == place.offset => *count += 1,
            _ => found[at].1.push((place.offset, 1)),
        }
    }
    Ok(Some(found))
}

fn class(py: Python<'_>) -> PyResult<*mut ffi::PyTypeObject> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    Ok(CLASS.get_or_try_init(py, || class::build(py))?.as_ptr().cast())
}

/// The class itself, for the module.
pub fn class_object(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: `class` keeps a reference to it for ever.
    Ok(unsafe { Bound::from_borrowed_ptr(py, class(py)?.cast()) })
}

/// The payload's bytes, as long as the message lives.
fn bytes_of<'a>(py: Python<'_>, message: *mut ffi::PyObject) -> &'a [u8] {
    // SAFETY: the object holds either its payload inline, as many bytes as its size says, or a bytes object; neither
    // changes while it lives.
    unsafe {
        let object = message.cast::<Object>();
        if (*object).payload.is_null() {
            let size = usize::try_from((*object).head.ob_size).unwrap_or(0);
            std::slice::from_raw_parts(object.add(1).cast(), size)
        } else {
            let payload = Bound::from_borrowed_ptr(py, (*object).payload).cast_into_unchecked::<PyBytes>();
            std::slice::from_raw_parts(payload.as_bytes().as_ptr(), payload.as_bytes().len())
        }
    }
}

unsafe extern "C" fn dealloc(message: *mut ffi::PyObject) {
    // SAFETY: called once, by the interpreter, for an object that `make` made; the references were its own.
    unsafe {
        let object = message.cast::<Object>();
        ffi::Py_DecRef((*object).topic);
        ffi::Py_DecRef((*object).sender);
        ffi::Py_DecRef((*object).payload);
        ffi::Py_DecRef((*object).fields);
        if !(*object).place.is_null() {
            let place = Box::from_raw((*object).place);
            ffi::Py_DecRef(place.stream);
            ffi::Py_DecRef(place.owner);
            let spare = &mut SPARE.0.borrow_mut();
            if spare.len() < KEPT {
                spare.push(place);
            }
        }
        let kind = ffi::Py_TYPE(message);
        let steps = usize::try_from((*object).head.ob_size).unwrap_or(0).div_ceil(STEP);
        let free = &mut FREE.0.borrow_mut()[steps];
        if free.len() < KEPT {
            free.push(object);
        } else {
            ffi::PyObject_Free(message.cast());
        }
        ffi::Py_DecRef(kind.cast());
    }
}

/// Fields as a dict.
pub fn unpacked<'py>(packed: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static DECODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    DECODE.import(packed.py(), "msgspec.msgpack", "decode")?.call1((packed,))
}

fn place_of(object: &Object) -> Option<&Place> {
    // SAFETY: the field holds a place of its own, or none.
    unsafe { object.place.as_ref() }
}

/// In place of a frame's kind: the word that everything kept has been handed over.
pub const NOTIFY: u8 = 0xff;
