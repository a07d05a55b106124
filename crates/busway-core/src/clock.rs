//! The two clocks of the machine: the time of day, and a steady clock. A simulation stops both and sets them.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The time of day at which the clocks stand, in nanoseconds since 1970; 0: they run.
static HELD: AtomicI64 = AtomicI64::new(0);

/// Stops both clocks at a time of day in nanoseconds since 1970, for the whole process; 0 lets them run.
pub fn hold(at: i64) {
    HELD.store(at, Relaxed);
}

/// The time of day in nanoseconds since 1970.
#[inline]
pub fn now() -> i64 {
    match HELD.load(Relaxed) {
        0 => {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
        }
        held => held,
    }
}

/// The time since a fixed moment. That moment changes when the clock is stopped or started.
pub fn steady() -> Duration {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    match HELD.load(Relaxed) {
        0 => BEGIN.get_or_init(Instant::now).elapsed(),
        held => Duration::from_nanos(held.unsigned_abs()),
    }
}
