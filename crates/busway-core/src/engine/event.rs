//! What the engine tells its driver.

/// What the driver has to do something about.
#[derive(Debug)]
pub enum Event {
    Hello {
        conn: u32,
        version: u16,
        map: Vec<u8>,
    },
    Subscribe {
        conn: u32,
        sub: u32,
        number: u64,
        flags: u8,
        policy: u8,
        pattern: String,
        group: String,
        rules: Vec<u8>,
        /// From where it wants stored messages, as `MessagePack`.
        since: Vec<u8>,
    },
    /// There is room again in the outbox of a connection that is behind, or for which that was asked.
    Room(u32),
    Serve {
        conn: u32,
        service: u32,
        number: u64,
        topic: String,
        flags: u8,
    },
    /// A shared service was given up.
    Unserve {
        conn: u32,
        service: u32,
        topic: String,
    },
    /// A message to be kept, or to be kept no longer.
    Keep {
        conn: u32,
        topic: String,
        frame: Vec<u8>,
    },
    /// A subscription fell behind on a stream, from this record on.
    Behind {
        conn: u32,
        sub: u32,
        stream: u32,
        offset: u64,
    },
    /// A record that is to be delivered later is safe.
    Later {
        stream: u32,
        due: i64,
        offset: u64,
    },
    /// A subscription that misses nothing of streams has ended.
    Unsubscribe {
        conn: u32,
        sub: u32,
    },
    /// More of a stream is safe; for a stream that the driver follows.
    Stored(u32),
    /// Frames about channels: kind, id, number, the rest.
    Channel {
        conn: u32,
        kind: u8,
        id: u32,
        number: u64,
        rest: Vec<u8>,
    },
    /// What became of a message of the driver.
    Own {
        ticket: u64,
        code: u16,
        text: String,
    },
    /// Another node has let us in.
    Welcome {
        conn: u32,
        version: u16,
        map: Vec<u8>,
    },
    /// Something that another node says, besides messages.
    Node {
        conn: u32,
        kind: u16,
        number: u64,
        body: Vec<u8>,
    },
    /// All that a new link is asked for is known.
    Synced(u32),
    /// A node has handled what was sent to it before the PING.
    Pong {
        conn: u32,
        token: u64,
    },
    /// A topic is served by two who both want to be the only one; the other one is behind this link.
    Conflict {
        conn: u32,
        topic: String,
    },
    /// A node has somebody who shares in a service.
    Provider {
        conn: u32,
        service: u32,
        topic: String,
        flags: u8,
    },
    /// Another node asks whether somebody here would take a call.
    Ask {
        conn: u32,
        number: u64,
        topic: String,
        frame: Vec<u8>,
    },
    /// A request to a shared service.
    Request {
        conn: u32,
        number: u64,
        topic: String,
        frame: Vec<u8>,
        /// Of another node.
        far: bool,
    },
    /// Who asked a shared service no longer waits.
    Cancel {
        conn: u32,
        number: u64,
    },
    /// The answer to an ASK.
    Accept {
        conn: u32,
        call: u64,
        code: u16,
    },
    /// The reply of a shared service.
    Answer {
        conn: u32,
        frame: Vec<u8>,
    },
    /// A request to the broker itself.
    Call {
        conn: u32,
        number: u64,
        time: i64,
        topic: String,
        payload: Vec<u8>,
    },
    /// The peer says goodbye.
    Close {
        conn: u32,
        code: u16,
        text: String,
    },
    /// The peer broke the rules; CLOSE is queued.
    Fail {
        conn: u32,
        code: u16,
        text: String,
    },
    /// It waits for somebody slow: let time pass.
    Wait(u32),
    /// Read again; only its publishes wait.
    Read(u32),
    /// Read no more from it,
    Pause(u32),
    /// go on with `resume` and read again.
    Resume(u32),
    /// Comparing with regular expressions took long: read no more from it, let others have their turn, then go on as above.
    Yield(u32),
}
