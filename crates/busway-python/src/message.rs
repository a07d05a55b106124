//! Messages for Python: one small allocation each, with attributes that are created on access.
//!
//! A message is created for every delivery, so it uses the C interface: a class by macro costs twice as much to create
//! and free. The object contains a small payload, which becomes `bytes` on access. `class` has its Python attributes.

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

/// The longest payload inside the object.
const INLINE: usize = 384;
/// Object sizes are multiples of so many bytes of payload, so that memory can be reused.
const STEP: usize = 64;
/// Free objects of each size that are kept. A read creates hundreds of them and frees them together, and the
/// interpreter would return their memory to the system each time.
const KEPT: usize = 2048;

static FREE: Attached<RefCell<[Vec<*mut Object>; INLINE / STEP + 1]>> =
    Attached(RefCell::new([const { Vec::new() }; INLINE / STEP + 1]));

/// Free objects for the next messages.
#[allow(clippy::vec_box)] // the boxes are reused
static SPARE: Attached<RefCell<Vec<Box<Place>>>> = Attached(RefCell::new(Vec::new()));

/// The sender of a message, shared by all messages of a sender.
pub struct Sender {
    pub name: Py<PyString>,
    pub session: u64,
}

/// The parts of a message.
pub struct Parts<'a> {
    pub topic: &'a Py<PyString>,
    pub from: &'a Sender,
    /// UTC, nanoseconds since 1970.
    pub time: i64,
    pub number: u64,
    /// Kind and flags of its frame.
    pub frame: u8,
    pub flags: u8,
    /// Its fields, as bytes or as a dict.
    pub fields: Option<Py<PyAny>>,
    pub payload: &'a [u8],
    /// Where it is stored.
    pub place: Option<Box<Place>>,
}

/// The position of a stored message. It is freed with its message, where no `PyO3` object may be dropped, so it has
/// plain references.
pub struct Place {
    /// (broker, stream), shared by all messages of a stream.
    stream: *mut ffi::PyObject,
    pub offset: u64,
    pub sequence: u64,
    /// When it was stored, UTC, nanoseconds since 1970.
    pub stored: i64,
    /// How often a channel has delivered it.
    pub deliveries: u32,
    /// A weak reference to the channel that delivered it, or null.
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
        // SAFETY: called attached; the copy gets its own references.
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

    /// Its channel, unless that object no longer exists.
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
    /// Null until the first access, unless it is too long for the object.
    payload: *mut ffi::PyObject,
    /// Null if there are none; bytes until the first access, then a dict.
    fields: *mut ffi::PyObject,
    /// Null unless the message is stored.
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

/// Creates a message.
#[inline]
pub fn make(py: Python<'_>, parts: Parts<'_>) -> PyResult<Message> {
    let kind = class(py)?;
    let inline = if parts.payload.len() <= INLINE { parts.payload } else { &[] };
    // SAFETY: the block has room for `inline.len()` items or more, every field of it is written before anybody else
    // sees it, and each stored reference is one of our own.
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

/// A copy of a message with another count of missed messages, or an additional flag.
pub fn copy(py: Python<'_>, message: &Message, missed: u64, flags: u8) -> PyResult<Message> {
    // SAFETY: only `make` creates a Message, and `bytes_of` keeps the payload alive in it.
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
    // SAFETY: the field holds its own position, or none.
    let place = unsafe { object.place.as_ref() }.map(Place::copy);
    let parts = Parts { topic: &topic, from: &from, time, number, frame, flags, fields, payload, place };
    let copy = make(py, parts)?;
    // SAFETY: just created, and not shared yet.
    unsafe { (*copy.as_ptr().cast::<Object>()).missed = missed };
    Ok(copy)
}

/// A message's id. The retaining session (posts) or name (pins) and the topic go into the hash.
pub fn identify(py: Python<'_>, message: &Message, pin: bool, hasher: &mut impl Hasher) -> (u64, u64) {
    // SAFETY: only `make` creates a Message, whose text fields hold a str.
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

/// True if the message has this session and number.
pub fn is(message: &Message, session: u64, number: u64) -> bool {
    // SAFETY: only `make` creates a Message.
    let object = unsafe { &*message.as_ptr().cast::<Object>() };
    object.session == session && object.number == number
}

/// The position of an object that may be a message; None: it is no stored message.
fn place_in<'a>(py: Python<'_>, object: &'a Bound<'_, PyAny>) -> PyResult<Option<&'a Place>> {
    if object.get_type_ptr() != class(py)? {
        return Ok(None);
    }
    // SAFETY: only `make` creates a Message, and it lives as long as the reference.
    Ok(place_of(unsafe { &*object.as_ptr().cast::<Object>() }))
}

/// (broker, stream) and the offset after the last message, for each stream of these messages.
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

/// Offsets of a stream, as (first, count).
type Runs<'py> = (Bound<'py, PyAny>, Vec<(u64, u64)>);

/// The offsets of messages that a channel delivered, in their order, by (broker, stream); None: one of them is not from
/// this channel. `channel` is the weak reference passed to `Session.own`.
#[pyfunction]
pub fn delivered_offsets<'py>(
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
    // SAFETY: `class` keeps a reference to it permanently.
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
    // SAFETY: the field holds its own position, or none.
    unsafe { object.place.as_ref() }
}

/// In place of a frame's kind: a notice that all retained messages were delivered.
pub const NOTIFY: u8 = 0xff;
