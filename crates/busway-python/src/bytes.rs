//! Bytes between Python and Rust: payloads in, chunks of output out.

use std::cell::RefCell;
use std::ffi::c_int;
use std::rc::Rc;

use busway_core::engine::outbox::Pool;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PyString};

/// The pool that gets buffers back after they are written.
pub type Bin = Attached<Rc<RefCell<Pool>>>;

/// A value that is only accessed by the thread attached to the interpreter, so that it needs no atomic operations,
/// which would cost more than the rest of decoding a message.
#[derive(Default)]
pub struct Attached<T>(pub T);

// SAFETY: everything inside is reached from methods of Python classes and from their deallocation only. Both run with
// the interpreter's lock held (builds without that lock have no stable ABI and can't load this module), and the lock
// orders what one thread did before what the next one sees.
unsafe impl<T> Send for Attached<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Attached<T> {}

/// Bytes to write. The memory returns to its pool when the transport releases it.
#[pyclass(frozen, module = "busway._core")]
pub struct Chunk {
    data: Vec<u8>,
    bin: Bin,
}

impl Chunk {
    /// Returns the data as a memoryview, which every event loop accepts.
    pub fn view<'py>(py: Python<'py>, data: Vec<u8>, bin: &Bin) -> PyResult<Bound<'py, PyMemoryView>> {
        let chunk = Bound::new(py, Self { data, bin: Attached(bin.0.clone()) })?;
        PyMemoryView::from(chunk.as_any())
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.bin.0.borrow_mut().put(std::mem::take(&mut self.data));
    }
}

#[pymethods]
impl Chunk {
    fn __len__(&self) -> usize {
        self.data.len()
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        // SAFETY: the class is frozen and `data` is only taken when the object is freed.
        unsafe { fill(slf.as_any(), &slf.get().data, view, flags) }
    }
}

/// Bytes of the engine, as a buffer for Python.
#[pyclass(frozen, module = "busway._core")]
pub struct ColumnBuffer(pub Vec<u8>);

#[pymethods]
impl ColumnBuffer {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        // SAFETY: the class is frozen and nothing takes its bytes.
        unsafe { fill(slf.as_any(), &slf.get().0, view, flags) }
    }
}

/// Fills a read-only view of an object's bytes.
///
/// # Safety
/// The bytes must stay as they are while the object lives, which the view's reference to it makes sure of.
unsafe fn fill(object: &Bound<'_, PyAny>, data: &[u8], view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
    if view.is_null() {
        return Err(PyBufferError::new_err("no view to fill"));
    }
    let size = ffi::Py_ssize_t::try_from(data.len())?;
    // SAFETY: see above; the view is read-only.
    let done =
        unsafe { ffi::PyBuffer_FillInfo(view, object.as_ptr(), data.as_ptr().cast_mut().cast(), size, 1, flags) };
    if done == 0 {
        Ok(())
    } else {
        Err(PyErr::fetch(object.py()))
    }
}

/// Calls `use_it` with the bytes of a payload: bytes and str without a copy, anything else with the buffer protocol.
#[inline]
pub fn with_bytes<R>(payload: &Bound<'_, PyAny>, use_it: impl FnOnce(&[u8]) -> PyResult<R>) -> PyResult<R> {
    if let Ok(bytes) = payload.cast_exact::<PyBytes>() {
        use_it(bytes.as_bytes())
    } else if let Ok(text) = payload.cast::<PyString>() {
        use_it(text.to_str()?.as_bytes())
    } else {
        with_buffer(payload, None, use_it)
    }
}

/// Calls `use_it` with the first `size` bytes of a buffer.
pub fn with_buffer<R>(
    data: &Bound<'_, PyAny>,
    size: Option<usize>,
    use_it: impl FnOnce(&[u8]) -> PyResult<R>,
) -> PyResult<R> {
    if let Ok(bytes) = data.cast_exact::<PyBytes>() {
        let bytes = bytes.as_bytes();
        return use_it(&bytes[..size.unwrap_or(bytes.len()).min(bytes.len())]);
    }
    let buffer = PyBuffer::<u8>::get(data)?;
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("a contiguous buffer is needed"));
    }
    let size = size.unwrap_or(buffer.len_bytes()).min(buffer.len_bytes());
    // SAFETY: the buffer is contiguous and held until after the call; this thread holds the GIL and runs no Python code
    // in between that could write to it.
    let bytes = unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), size) };
    use_it(bytes)
}
