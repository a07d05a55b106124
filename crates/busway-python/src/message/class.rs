//! The Python class of messages: its attributes, and the methods that call its channel, with the types of the
//! interpreter.

use std::ffi::{c_char, c_int, c_void, CStr};
use std::ptr;

use busway_core::wire::frame::{code, flag, kind, Fault};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyDict, PyString, PyTuple, PyType};

use super::{bytes_of, dealloc, place_of, unpacked, Object, NOTIFY};
use crate::raised;

unsafe extern "C" fn payload(message: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter, attached, with a message; the field takes its own reference.
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
    // SAFETY: called by the interpreter, attached, with a message; the field takes its own reference.
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
    kept, "Whether it was retained and delivered when the subscription began.", |py, object, _| {
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
        let at = POSITION.import(py, "busway.positions", "position_at")?;
        Ok(at.call1((place.stream(py), place.offset, place.sequence))?.unbind())
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
    deliveries, "How often its channel has delivered it.", |py, object, _| {
        Ok(place_of(object).map_or(0, |place| place.deliveries).into_pyobject(py)?.into_any().unbind())
    };
    channel, "The channel that delivered it, or None.", |py, object, _| {
        Ok(place_of(object).and_then(|place| place.owner(py)).map_or_else(|| py.None(), Bound::unbind))
    };
    text, "The payload as text.", |py, _, message| {
        let bytes = PyBytes::new(py, bytes_of(py, message));
        Ok(bytes.call_method1("decode", ("utf-8",))?.unbind())
    };
}

/// Calls the method `name` of the message's channel with the message and the given arguments.
fn call_channel(
    message: *mut ffi::PyObject,
    name: &str,
    args: *mut ffi::PyObject,
    names: *mut ffi::PyObject,
) -> PyResult<*mut ffi::PyObject> {
    // SAFETY: called by the interpreter, attached, with a message.
    let (py, object) = unsafe { (Python::assume_attached(), &*message.cast::<Object>()) };
    let Some(owner) = place_of(object).and_then(|place| place.owner(py)) else {
        let text = if place_of(object).is_some_and(super::Place::has_owner) {
            "the channel of this message was dropped without being closed, so the message is redelivered"
        } else {
            "only a message that a channel delivered can be acknowledged"
        };
        return Err(raised(py, &Fault::new(code::NO_CHANNEL, text)));
    };
    // SAFETY: as above, with a tuple or none, and a dict or none.
    let (message, args, names) = unsafe {
        (
            Bound::from_borrowed_ptr(py, message),
            Bound::from_borrowed_ptr_or_opt(py, args),
            Bound::from_borrowed_ptr_or_opt(py, names),
        )
    };
    let mut all = vec![message];
    if let Some(args) = args {
        for one in args.try_iter()? {
            all.push(one?);
        }
    }
    let names = names.as_ref().map(|names| names.cast::<PyDict>()).transpose()?;
    Ok(owner.call_method(name, PyTuple::new(py, all)?, names)?.into_ptr())
}

fn given(done: PyResult<*mut ffi::PyObject>) -> *mut ffi::PyObject {
    done.unwrap_or_else(|error| {
        // SAFETY: called by the interpreter, attached.
        error.restore(unsafe { Python::assume_attached() });
        ptr::null_mut()
    })
}

unsafe extern "C" fn ack(message: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    given(call_channel(message, "ack", ptr::null_mut(), ptr::null_mut()))
}

unsafe extern "C" fn extend(message: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    given(call_channel(message, "extend", ptr::null_mut(), ptr::null_mut()))
}

unsafe extern "C" fn nack(
    message: *mut ffi::PyObject,
    args: *mut ffi::PyObject,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    given(call_channel(message, "nack", args, names))
}

unsafe extern "C" fn reject(
    message: *mut ffi::PyObject,
    args: *mut ffi::PyObject,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    given(call_channel(message, "reject", args, names))
}

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
            // Attached again, so that objects dropped here count as dropped by an attached thread.
            Python::attach(|py| no_json(py, message, error).restore(py));
            ptr::null_mut()
        },
        Bound::into_ptr,
    )
}

/// The error of a payload that is not JSON, which names the message's topic and position.
fn no_json(py: Python<'_>, message: *mut ffi::PyObject, error: PyErr) -> PyErr {
    static EXPLAIN: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    // SAFETY: called with a message.
    let message = unsafe { Bound::from_borrowed_ptr(py, message) };
    let error = error.into_value(py);
    EXPLAIN
        .import(py, "busway.client.typed.codec", "no_json")
        .and_then(|explain| explain.call1((message, error)))
        .map_or_else(|failed| failed, PyErr::from_value)
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

pub(super) fn build(py: Python<'_>) -> PyResult<Py<PyType>> {
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
    let extend = ffi::PyMethodDef {
        ml_name: c"extend".as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunction: extend },
        ml_flags: ffi::METH_NOARGS,
        ml_doc: c"extend($self, /)\n--\n\nRestart the lease of the message, which is still in work.".as_ptr(),
    };
    let nack = ffi::PyMethodDef {
        ml_name: c"nack".as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunctionWithKeywords: nack },
        ml_flags: ffi::METH_VARARGS | ffi::METH_KEYWORDS,
        ml_doc: c"nack($self, /, delay=None, reason=None)\n--\n\nHave its channel redeliver it, after a delay or the channel's backoff."
            .as_ptr(),
    };
    let reject = ffi::PyMethodDef {
        ml_name: c"reject".as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunctionWithKeywords: reject },
        ml_flags: ffi::METH_VARARGS | ffi::METH_KEYWORDS,
        ml_doc: c"reject($self, /, reason)\n--\n\nMake it a dead letter of its channel at once.".as_ptr(),
    };
    let methods = vec![method, ack, extend, nack, reject, ffi::PyMethodDef::zeroed()];
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
    // SAFETY: the specification is complete, its name and lists live permanently, and the functions have the types their
    // slots ask for.
    unsafe {
        let class = Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpec(&raw mut spec))?;
        Ok(class.cast_into_unchecked::<PyType>().unbind())
    }
}
