//! Stored records as columns for Python: the buffers of the Arrow arrays in `busway.arrow`.

use busway_core::log::columns::{Columns, Problem, Wanted};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};

use crate::bytes::ColumnBuffer;
use crate::rules::Selection;

/// The type of a column, and its buffers.
pub type Shown<'py> = (&'static str, Vec<Bound<'py, ColumnBuffer>>);

/// Creates empty columns with these names.
pub fn asked(names: &[PyBackedStr], plain: bool) -> PyResult<Columns> {
    let unknown = "columns are offset, topic, sequence, stored, time, id, sender, fields and payload";
    Columns::new(names.iter().map(|name| &**name), plain).ok_or_else(|| PyValueError::new_err(unknown))
}

/// The number of rows, and the columns in their order.
pub fn shown(py: Python<'_>, columns: Columns) -> PyResult<(usize, Vec<Shown<'_>>)> {
    let (rows, made) = columns.made();
    let shown = |(kind, buffers): (_, Vec<_>)| {
        let buffers = buffers.into_iter().map(|data| Bound::new(py, ColumnBuffer(data))).collect::<PyResult<_>>()?;
        Ok((kind, buffers))
    };
    Ok((rows, made.into_iter().map(shown).collect::<PyResult<_>>()?))
}

/// Returns the wanted columns of blocks; see `busway.arrow`.
#[pyfunction]
#[pyo3(signature = (blocks, wanted, selection = None, begin = 0, end = u64::MAX, now = 0))]
pub fn columns<'py>(
    py: Python<'py>,
    blocks: Vec<PyBackedBytes>,
    wanted: Vec<PyBackedStr>,
    selection: Option<&Bound<'_, Selection>>,
    begin: u64,
    end: u64,
    now: i64,
) -> PyResult<(usize, Vec<Shown<'py>>)> {
    let mut columns = asked(&wanted, false)?;
    let bytes: Vec<&[u8]> = blocks.iter().map(|block| &**block).collect();
    let wanted = Wanted { selection: selection.map(|given| &given.get().0), range: begin..end, now };
    py.detach(|| columns.add_blocks(&bytes, &wanted)).map_err(|problem| {
        PyValueError::new_err(match problem {
            Problem::NoBlock => "not a block of whole records",
            Problem::TooMuch => "more than 2 GiB at once; give fewer blocks",
        })
    })?;
    shown(py, columns)
}
