//! A message as Python sees it: one small allocation, with parts that are made when asked for.
//!
//! This is the one object that is made for every message, so it is written against the C interface: a class by macro costs
//! twice as much to make and to free. A small payload lies in the object itself and becomes `bytes` when it is asked for.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void, CStr};
use std::hash::{Hash, Hasher};
use std::ptr;

use busway_core::frame::{code, flag, kind, Fault};
use pyo3::exceptions::{PyMemoryError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyDict, PyList, PyString, PyType};

use crate::bytes::Attached;
use crate::raised;

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
    /// The channel that wants to hear what became of it, or null.
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

    fn owner<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        // SAFETY: the field holds a reference, or none.
        unsafe { Bound::from_borrowed_ptr_or_opt(py, self.owner) }
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

/// The offsets of messages that this channel handed out, as (first, how many) in their order; None: one is not of it.
#[pyfunction]
pub fn handed<'py>(
    py: Python<'py>,
    messages: &Bound<'py, PyAny>,
    channel: &Bound<'py, PyAny>,
) -> PyResult<Option<Vec<(u64, u64)>>> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for message in messages.try_iter()? {
        let message = message?;
        let Some(place) = place_in(py, &message)?.filter(|place| place.owner == channel.as_ptr()) else {
            return Ok(None);
        };
        match runs.last_mut() {
            Some((first, count)) if *first + *count == place.offset => *count += 1,
            _ => runs.push((place.offset, 1)),
        }
    }
    Ok(Some(runs))
}

fn class(py: Python<'_>) -> PyResult<*mut ffi::PyTypeObject> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    Ok(CLASS.get_or_try_init(py, || build(py))?.as_ptr().cast())
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

unsafe extern "C" fn payload(message: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter, attached, with a message; the field takes a reference of its own.
    unsafe {
        let py = Python::assume_attached();
        let object = message.cast::<Object>();
        if (*object).payload.is_null() {
            (*object).payload = PyBytes::new(py, bytes_of(py, message)).into_ptr();
        }
        ffi::Py_NewRef((*object).payload)
    }
}

unsafe extern "C" fn fields(message: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter, attached, with a message; the field takes a reference of its own.
    let (py, object) = unsafe { (Python::assume_attached(), &mut *message.cast::<Object>()) };
    // SAFETY: the field holds a reference, or none.
    let made = match unsafe { Bound::from_borrowed_ptr_or_opt(py, object.fields) } {
        None => Ok(PyDict::new(py).into_any()),
        Some(packed) if packed.is_instance_of::<PyBytes>() => unpacked(&packed),
        Some(fields) => Ok(fields),
    };
    match made {
        Ok(made) => {
            // SAFETY: the old reference is given up for the new one.
            unsafe { ffi::Py_DecRef(std::mem::replace(&mut object.fields, made.clone().into_ptr())) };
            made.into_ptr()
        }
        Err(error) => {
            error.restore(py);
            ptr::null_mut()
        }
    }
}

/// Fields as a dict.
pub fn unpacked<'py>(packed: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static DECODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    DECODE.import(packed.py(), "msgspec.msgpack", "decode")?.call1((packed,))
}

/// A getter that may fail.
type Get = fn(Python<'_>, &Object, *mut ffi::PyObject) -> PyResult<Py<PyAny>>;

macro_rules! getters {
    ($($name:ident, $doc:literal, $get:expr;)*) => {
        $(unsafe extern "C" fn $name(message: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
            // SAFETY: called by the interpreter, attached, with a message.
            let (py, object) = unsafe { (Python::assume_attached(), &*message.cast::<Object>()) };
            let get: Get = $get;
            get(py, object, message).map_or_else(|error| { error.restore(py); ptr::null_mut() }, Py::into_ptr)
        })*
        const GETTERS: &[(&CStr, &CStr, ffi::getter)] = &[$((
            // SAFETY: a literal with a NUL at its end and none before.
            unsafe { CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) },
            // SAFETY: as above.
            unsafe { CStr::from_bytes_with_nul_unchecked(concat!($doc, "\0").as_bytes()) },
            $name,
        )),*];
    };
}

getters! {
    topic, "The topic it was published on.", |py, object, _| {
        // SAFETY: the field holds a reference.
        Ok(unsafe { Bound::from_borrowed_ptr(py, object.topic) }.unbind())
    };
    sender, "Name of the client that sent it.", |py, object, _| {
        // SAFETY: the field holds a reference.
        Ok(unsafe { Bound::from_borrowed_ptr(py, object.sender) }.unbind())
    };
    missed, "How many messages of this subscription were dropped right before this one.", |py, object, _| {
        Ok(object.missed.into_pyobject(py)?.into_any().unbind())
    };
    time_ns, "When it was sent: UTC, nanoseconds since 1970.", |py, object, _| {
        Ok(object.time.into_pyobject(py)?.into_any().unbind())
    };
    time, "When it was sent, UTC.", |py, object, _| {
        static EPOCH: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static DELTA: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let delta = DELTA.import(py, "datetime", "timedelta")?;
        let epoch = EPOCH.get_or_try_init(py, || {
            let datetime = py.import("datetime")?;
            let utc = datetime.getattr("timezone")?.getattr("utc")?;
            PyResult::Ok(datetime.getattr("datetime")?.call1((1970, 1, 1, 0, 0, 0, 0, utc))?.unbind())
        })?;
        epoch.call_method1(py, "__add__", (delta.call1((0, 0, object.time.div_euclid(1000)))?,))
    };
    id, "32 hexadecimal digits: the sender's session and its number for the message.", |py, object, _| {
        let id = format!("{:016x}{:016x}", object.session, object.number);
        Ok(id.into_pyobject(py)?.into_any().unbind())
    };
    kind, "publish, post, pin, withdrawn, notify, push, request or reply.", |py, object, _| {
        Ok(PyString::intern(py, kind_name(object)).into_any().unbind())
    };
    kept, "Whether it was kept and handed over when the subscription began.", |py, object, _| {
        let kept = object.frame == kind::DELIVER && object.flags & (flag::KEPT | flag::WITHDRAWN) == flag::KEPT;
        Ok(PyBool::new(py, kept).to_owned().into_any().unbind())
    };
    last, "Whether no more replies to the same request, or messages of the same backlog, follow.", |py, object, _| {
        let more = match object.frame {
            kind::REPLY => object.flags & flag::PARTIAL != 0,
            kind::RECORD => object.flags & (flag::REPLAY | flag::LAST) == flag::REPLAY,
            _ => false,
        };
        Ok(PyBool::new(py, !more).to_owned().into_any().unbind())
    };
    replayed, "Whether it was stored before the subscription asked for it.", |py, object, _| {
        let old = object.frame == kind::RECORD && object.flags & flag::REPLAY != 0;
        Ok(PyBool::new(py, old).to_owned().into_any().unbind())
    };
    position, "Where it is stored, or None: broker, stream and offset.", |py, object, _| {
        static POSITION: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let Some(place) = place_of(object) else { return Ok(py.None()) };
        let (broker, stream) = place.stream(py).extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>()?;
        let position = POSITION.import(py, "busway.positions", "Position")?;
        Ok(position.call1((broker, stream, place.offset, place.sequence))?.unbind())
    };
    broker, "Guid of the broker that stored it, or None.", |py, object, _| {
        place_of(object).map_or_else(|| Ok(py.None()), |place| Ok(place.stream(py).get_item(0)?.unbind()))
    };
    stream, "Name of the stream that it is stored in, or None.", |py, object, _| {
        place_of(object).map_or_else(|| Ok(py.None()), |place| Ok(place.stream(py).get_item(1)?.unbind()))
    };
    offset, "Its place in its stream, or None.", |py, object, _| {
        Ok(place_of(object).map(|place| place.offset).into_pyobject(py)?.into_any().unbind())
    };
    sequence, "Its place among the stored messages of its topic, from 1, or None.", |py, object, _| {
        Ok(place_of(object).map(|place| place.sequence).into_pyobject(py)?.into_any().unbind())
    };
    stored_ns, "When it was stored: UTC, nanoseconds since 1970, or None.", |py, object, _| {
        Ok(place_of(object).map(|place| place.stored).into_pyobject(py)?.into_any().unbind())
    };
    deliveries, "How often its channel has handed it out.", |py, object, _| {
        Ok(place_of(object).map_or(0, |place| place.deliveries).into_pyobject(py)?.into_any().unbind())
    };
    channel, "The channel that handed it out, or None.", |py, object, _| {
        Ok(place_of(object).and_then(|place| place.owner(py)).map_or_else(|| py.None(), Bound::unbind))
    };
    text, "The payload as text.", |py, _, message| {
        let bytes = PyBytes::new(py, bytes_of(py, message));
        Ok(bytes.call_method1("decode", ("utf-8",))?.unbind())
    };
}

fn place_of(object: &Object) -> Option<&Place> {
    // SAFETY: the field holds a place of its own, or none.
    unsafe { object.place.as_ref() }
}

/// Tells its channel what became of a message: calls `name` of it with the message and what else was given.
fn settle(message: *mut ffi::PyObject, name: &str, delay: Option<Bound<'_, PyAny>>) -> PyResult<*mut ffi::PyObject> {
    // SAFETY: called by the interpreter, attached, with a message.
    let (py, object) = unsafe { (Python::assume_attached(), &*message.cast::<Object>()) };
    let Some(owner) = place_of(object).and_then(|place| place.owner(py)) else {
        let text = "only a message that a channel handed out can be acknowledged";
        return Err(raised(py, &Fault::new(code::NO_CHANNEL, text)));
    };
    // SAFETY: as above.
    let message = unsafe { Bound::from_borrowed_ptr(py, message) };
    let told = match delay {
        Some(delay) => owner.call_method1(name, (message, delay)),
        None => owner.call_method1(name, (message,)),
    };
    Ok(told?.into_ptr())
}

fn given(done: PyResult<*mut ffi::PyObject>) -> *mut ffi::PyObject {
    done.unwrap_or_else(|error| {
        // SAFETY: called by the interpreter, attached.
        error.restore(unsafe { Python::assume_attached() });
        ptr::null_mut()
    })
}

unsafe extern "C" fn ack(message: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    given(settle(message, "_ack", None))
}

unsafe extern "C" fn nack(
    message: *mut ffi::PyObject,
    args: *mut ffi::PyObject,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter, attached, with a tuple and a dict or none.
    let (py, args, names) = unsafe {
        let py = Python::assume_attached();
        (py, Bound::from_borrowed_ptr(py, args), Bound::from_borrowed_ptr_or_opt(py, names))
    };
    let delay = || -> PyResult<Bound<'_, PyAny>> {
        let by_name = names.as_ref().and_then(|names| names.get_item("delay").ok());
        let most = usize::from(by_name.is_none());
        if args.len()? > most
            || names.as_ref().is_some_and(|names| names.len().unwrap_or(0) > usize::from(by_name.is_some()))
        {
            return Err(PyTypeError::new_err("nack() takes one argument: delay, in seconds"));
        }
        match by_name {
            Some(delay) => Ok(delay),
            None if args.len()? == 1 => args.get_item(0),
            None => Ok(0.0_f64.into_pyobject(py)?.into_any()),
        }
    };
    given(delay().and_then(|delay| settle(message, "_nack", Some(delay))))
}

/// In place of a frame's kind: the word that everything kept has been handed over.
pub const NOTIFY: u8 = 0xff;

fn kind_name(object: &Object) -> &'static str {
    let flags = object.flags;
    match object.frame {
        NOTIFY => "notify",
        kind::RECORD => "publish",
        kind::OFFER => "push",
        kind::CALL | kind::ASK => "request",
        kind::REPLY => "reply",
        _ if flags & flag::WITHDRAWN != 0 => "withdrawn",
        _ if flags & flag::PUSHED != 0 => "push",
        _ if flags & flag::REQUESTED != 0 => "request",
        _ if flags & flag::POST != 0 => "post",
        _ if flags & flag::PIN != 0 => "pin",
        _ => "publish",
    }
}

unsafe extern "C" fn json(message: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    static DECODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    // SAFETY: called by the interpreter, attached, with a message.
    let py = unsafe { Python::assume_attached() };
    let decode = DECODE.import(py, "msgspec.json", "decode");
    let value = decode.and_then(|decode| decode.call1((PyBytes::new(py, bytes_of(py, message)),)));
    value.map_or_else(
        |error| {
            error.restore(py);
            ptr::null_mut()
        },
        Bound::into_ptr,
    )
}

unsafe extern "C" fn repr(message: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter, attached, with a message whose topic is a str.
    let (py, object) = unsafe { (Python::assume_attached(), &*message.cast::<Object>()) };
    // SAFETY: the field holds a reference.
    let topic = unsafe { Bound::from_borrowed_ptr(py, object.topic) };
    let payload = bytes_of(py, message);
    let shown = &payload[..payload.len().min(32)];
    let more = if payload.len() > 32 { format!("... {} bytes", payload.len()) } else { String::new() };
    let text = || -> PyResult<String> {
        let (topic, shown) = (topic.repr()?, PyBytes::new(py, shown).repr()?);
        Ok(format!("<Message {} {topic}: {shown}{more}>", kind_name(object)))
    };
    text().and_then(|text| Ok(text.into_pyobject(py)?)).map_or_else(
        |error| {
            error.restore(py);
            ptr::null_mut()
        },
        Bound::into_ptr,
    )
}

fn build(py: Python<'_>) -> PyResult<Py<PyType>> {
    let getter = |name: &CStr, doc: &CStr, get| ffi::PyGetSetDef {
        name: name.as_ptr(),
        get: Some(get),
        set: None,
        doc: doc.as_ptr(),
        closure: ptr::null_mut(),
    };
    let mut getters: Vec<_> = GETTERS.iter().map(|&(name, doc, get)| getter(name, doc, get)).collect();
    getters.push(getter(c"payload", c"The payload as it was sent.", payload));
    getters.push(getter(c"fields", c"Its fields, as a dict of its own.", fields));
    // SAFETY: all zeros is the end of the list.
    getters.push(unsafe { std::mem::zeroed() });
    let method = ffi::PyMethodDef {
        ml_name: c"json".as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunction: json },
        ml_flags: ffi::METH_NOARGS,
        ml_doc: c"json($self, /)\n--\n\nThe payload read as JSON.".as_ptr(),
    };
    let ack = ffi::PyMethodDef {
        ml_name: c"ack".as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunction: ack },
        ml_flags: ffi::METH_NOARGS,
        ml_doc: c"ack($self, /)\n--\n\nTell its channel that it is done; await it to know that this is stored."
            .as_ptr(),
    };
    let nack = ffi::PyMethodDef {
        ml_name: c"nack".as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunctionWithKeywords: nack },
        ml_flags: ffi::METH_VARARGS | ffi::METH_KEYWORDS,
        ml_doc: c"nack($self, /, delay=0.0)\n--\n\nTell its channel to hand it out again, after a delay in seconds."
            .as_ptr(),
    };
    let methods = vec![method, ack, nack, ffi::PyMethodDef::zeroed()];
    let slot = |slot: c_int, pfunc: *mut c_void| ffi::PyType_Slot { slot, pfunc };
    // The class lives as long as the process, and so do the lists it points to.
    let (getters, methods) = (getters.leak(), methods.leak());
    let mut slots = [
        slot(ffi::Py_tp_dealloc, dealloc as *mut c_void),
        slot(ffi::Py_tp_repr, repr as *mut c_void),
        slot(ffi::Py_tp_getset, getters.as_mut_ptr().cast()),
        slot(ffi::Py_tp_methods, methods.as_mut_ptr().cast()),
        slot(ffi::Py_tp_doc, c"One message, as it came.".as_ptr().cast_mut().cast::<c_char>().cast()),
        slot(0, ptr::null_mut()),
    ];
    let flags = ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION | ffi::Py_TPFLAGS_IMMUTABLETYPE;
    let mut spec = ffi::PyType_Spec {
        name: c"busway._core.Message".as_ptr(),
        basicsize: c_int::try_from(size_of::<Object>())?,
        itemsize: 1,
        flags: u32::try_from(flags)?,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: the specification is complete, its name and lists live for ever, and the functions have the types their
    // slots ask for.
    unsafe {
        let class = Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpec(&raw mut spec))?;
        Ok(class.cast_into_unchecked::<PyType>().unbind())
    }
}
