//! A bell: one thread rings it, and an event loop hears that as a file that can be read.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::Arc;

/// Becomes readable when it is rung, until it is heard.
pub struct Bell {
    rung: Arc<AtomicBool>,
    pub ear: UnixStream,
}

impl Bell {
    pub fn new() -> std::io::Result<(Self, Box<dyn Fn() + Send + Sync>)> {
        let (ear, hand) = UnixStream::pair()?;
        ear.set_nonblocking(true)?;
        hand.set_nonblocking(true)?;
        let rung = Arc::new(AtomicBool::new(false));
        let flag = rung.clone();
        let pull = move || {
            if !flag.swap(true, SeqCst) {
                // One byte always fits, and nobody is left to hear it if the other end is gone.
                let _ = (&hand).write(&[1]);
            }
        };
        Ok((Self { rung, ear }, Box::new(pull)))
    }

    pub fn hear(&self) {
        // In this order: who rings before the second line is heard, for whoever calls this looks afterwards; who rings later
        // leaves it readable. The other way round a ring could be taken away and still count as one that is to be heard.
        let _ = (&self.ear).read(&mut [0; 8]);
        self.rung.store(false, SeqCst);
    }
}
