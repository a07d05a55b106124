//! Fuzzes a client's input: any bytes, in any pieces, give the same frames, and each is decoded or refused.
//!
//! The first byte is the size of the pieces, the second the limits of an inbox.
#![no_main]

use busway_core::client::codec::{read, Incoming, Limits, More, Outgoing, Run};
use busway_core::client::inbox::Inbox;
use busway_core::wire::frame::kind;
use busway_core::wire::splitter::{Flow, Splitter};
use libfuzzer_sys::fuzz_target;

const LIMIT: usize = 4096;

/// The fast path reads the same as the general path.
fn same(frame: &[u8], next: &Run, before: &Incoming) {
    let (Ok(Incoming::Deliver(this)), Incoming::Deliver(before)) = (read(frame), before) else { panic!("no delivery") };
    assert_eq!((this.topic, this.sender, this.id()), (before.topic, before.sender, before.id()));
    assert_eq!((this.body.time, this.body.number, this.body.payload), (next.time, next.number, next.payload));
}

/// The decoded frames, and whether a fault ended them.
fn run(data: &[u8], size: usize, inbox: &mut Inbox<Vec<u8>>) -> (Vec<String>, bool) {
    let (mut splitter, mut said) = (Splitter::default(), Vec::new());
    let mut each = |data: &[u8], size: usize| {
        let incoming = read(&data[..size])?;
        if let Incoming::Deliver(delivery) = &incoming {
            for _ in delivery.ids().take(100) {
                inbox.push(delivery.body.payload.len(), || delivery.body.payload.to_vec());
            }
        }
        if let Incoming::Missed { count, .. } = incoming {
            inbox.miss(count % (1 << 40));
        }
        said.push(format!("{incoming:?}"));
        if let Some(next) = Run::head(&data[..size]).and_then(|head| Run::next(head, &data[size..], LIMIT)) {
            same(&data[size..size + next.size], &next, &incoming);
        }
        Ok((Flow::Go, size))
    };
    let fault = data.chunks(size).any(|chunk| splitter.feed(chunk, LIMIT, &mut each).is_err());
    (said, fault)
}

fuzz_target!(|data: &[u8]| {
    let [size, limit, data @ ..] = data else { return };
    let (most, policy) = (usize::from(*limit >> 2) + 1, *limit & 3);
    let mut inbox = Inbox::new(most, most * 16, policy);
    let whole = run(data, data.len().max(1), &mut inbox);
    let mut again = Inbox::new(most, most * 16, policy);
    let pieces = run(data, usize::from(*size) + 1, &mut again);
    assert_eq!(whole, pieces);
    assert_eq!((inbox.len(), inbox.missed, inbox.received), (again.len(), again.missed, again.received));
    let (mut taken, mut told) = (0, 0);
    while let Some((_, missed)) = inbox.pop() {
        taken += 1;
        told += missed;
    }
    assert!(told <= inbox.missed);
    assert!(taken <= inbox.received);
    assert!(inbox.is_empty() && inbox.bytes() == 0);

    // A client's frames are well formed for all input.
    let mut out = Outgoing::new();
    out.open(Limits { frame: LIMIT, topic: 64, fields: 64, topics: 3 });
    for (i, part) in data.split(|byte| *byte == b'\n').take(20).enumerate() {
        let Ok(text) = std::str::from_utf8(part) else { continue };
        if let (Ok(slot), Ok(())) = (out.slot(text), out.fits(part.len(), part.len().min(8))) {
            let fields = &part[..part.len().min(8)];
            out.message(kind::PUBLISH, slot, More { time: 7, fields, ..More::default() }, part);
        }
        let _refused_or_written = (
            out.subscribe(i as u32, text, "g", 8 * (i as u8 % 2), 0, part, part),
            out.serve(i as u32, text, 0),
            out.reply(1, 0, 0, &[], part),
        );
        out.close(1, text);
    }
    let (mut splitter, mut bytes) = (Splitter::default(), 0);
    let written = out.out.clone();
    let fits = splitter.feed(&written, usize::MAX, &mut |_, size| {
        bytes += size;
        Ok((Flow::Go, size))
    });
    assert_eq!(fits, Ok(true));
    assert_eq!(bytes, written.len());
});
