//! A bell: one thread rings it, and an event loop is notified by a readable file descriptor.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::Arc;

/// Becomes readable when it is rung, until `clear` is called.
pub struct Bell {
    rung: Arc<AtomicBool>,
    pub ear: UnixStream,
    /// Closed with the bell: the thread that rings may live longer.
    _hand: Arc<UnixStream>,
}

impl Bell {
    pub fn new() -> std::io::Result<(Self, Box<dyn Fn() + Send + Sync>)> {
        let (ear, hand) = UnixStream::pair()?;
        ear.set_nonblocking(true)?;
        hand.set_nonblocking(true)?;
        let rung = Arc::new(AtomicBool::new(false));
        let hand = Arc::new(hand);
        let (flag, end) = (rung.clone(), Arc::downgrade(&hand));
        let pull = move || {
            if !flag.swap(true, SeqCst) {
                if let Some(hand) = end.upgrade() {
                    // One byte always fits.
                    let _ = (&*hand).write(&[1]);
                }
            }
        };
        Ok((Self { rung, ear, _hand: hand }, Box::new(pull)))
    }

    pub fn clear(&self) {
        // In this order: a ring before the second line is noticed by the caller, which checks its state afterwards; a
        // later ring leaves the file readable. In the other order a ring could be lost.
        let _ = (&self.ear).read(&mut [0; 8]);
        self.rung.store(false, SeqCst);
    }
}
