//! Options of a log for Python: its settings, and simulated files for tests.

use busway_core::log::files::memory::{Faults, Simulated};
use busway_core::log::{Safety, Settings};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

/// Applies keyword arguments to the settings of a log.
pub fn read_settings(mut settings: Settings, given: Option<&Bound<'_, PyDict>>) -> PyResult<Settings> {
    let count = |name: &str, value: &Bound<'_, PyAny>| {
        let refuse = |_| PyValueError::new_err(format!("{name} is a whole number, 0 or more, not {value}"));
        value.extract::<u64>().map_err(refuse)
    };
    for (name, value) in given.into_iter().flatten() {
        let name: String = name.extract()?;
        let age = |value| count(&name, value).map(|age| i64::try_from(age).unwrap_or(i64::MAX));
        match &*name {
            "safety" => {
                settings.safety = match &*value.extract::<String>()? {
                    "memory" => Safety::Memory,
                    "written" => Safety::Written,
                    "synced" => Safety::Synced,
                    other => {
                        let text = format!("safety is \"memory\", \"written\" or \"synced\", not {other:?}");
                        return Err(PyValueError::new_err(text));
                    }
                }
            }
            "bucket_bytes" => settings.bucket_bytes = count(&name, &value)?,
            "bucket_age" => settings.bucket_age = age(&value)?,
            "max_age" => settings.max_age = age(&value)?,
            "max_bytes" => settings.max_bytes = count(&name, &value)?,
            "max_count" => settings.max_count = count(&name, &value)?,
            "hold" => settings.hold = count(&name, &value)?,
            "keep_from" => settings.keep_from = count(&name, &value)?,
            "max_delay" => settings.max_delay = age(&value)?,
            "once_age" => settings.once_age = age(&value)?,
            "pending_bytes" => settings.pending_bytes = count(&name, &value)? as usize,
            _ => return Err(PyValueError::new_err(format!("a stream has no setting {name:?}"))),
        }
    }
    Ok(settings)
}

/// Files in memory for tests, which can fail or lose power.
#[pyclass(frozen, module = "busway._core")]
pub struct SimulatedFiles {
    pub files: Simulated,
}

#[pymethods]
impl SimulatedFiles {
    #[new]
    fn new() -> Self {
        Self { files: Simulated::new(true) }
    }

    /// Keeps synced data and a random part of the rest.
    fn power_cut(&self, seed: u64) {
        self.files.power_cut(seed);
    }

    /// Sets failures: bytes that can still be written, whether syncs fail, calls until all calls fail.
    #[pyo3(signature = (*, room = None, sync = false, fuse = None))]
    fn fail(&self, room: Option<usize>, sync: bool, fuse: Option<usize>) {
        self.files.set(Faults { room, sync, fuse });
    }

    /// Returns a copy of all written data, as the next process finds it after this one was killed.
    fn survivor(&self) -> Self {
        Self { files: self.files.survivor() }
    }

    fn contents<'py>(&self, py: Python<'py>) -> Vec<(String, Bound<'py, PyBytes>)> {
        let all = self.files.contents().into_iter();
        all.map(|(name, bytes)| (name, PyBytes::new(py, &bytes))).collect()
    }
}
