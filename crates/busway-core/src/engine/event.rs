//! Events that the engine returns to its driver.

/// Something that the driver must handle.
#[derive(Debug)]
pub enum Event {
    Hello {
        conn: u32,
        version: u16,
        map: Vec<u8>,
    },
    /// The answer of a client to a CHALLENGE.
    Login {
        conn: u32,
        map: Vec<u8>,
    },
    /// The grants of a client refused this, the first time since the driver last read the count of refusals.
    Refused {
        conn: u32,
        verb: u8,
        topic: String,
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
        /// Where its stored messages begin, as `MessagePack`.
        since: Vec<u8>,
    },
    /// A connection that was behind, or for which the driver asked, has room in its outbox.
    Room(u32),
    Serve {
        conn: u32,
        service: u32,
        number: u64,
        topic: String,
        flags: u8,
    },
    /// A shared service has ended.
    Unserve {
        conn: u32,
        service: u32,
        topic: String,
    },
    /// A message to retain or to withdraw.
    Keep {
        conn: u32,
        topic: String,
        frame: Vec<u8>,
    },
    /// A subscription falls behind in a stream, from this record on.
    Behind {
        conn: u32,
        sub: u32,
        stream: u32,
        offset: u64,
    },
    /// A delayed record is safe.
    Later {
        stream: u32,
        due: i64,
        offset: u64,
    },
    /// A stream subscription has ended.
    Unsubscribe {
        conn: u32,
        sub: u32,
    },
    /// `safe` of a followed stream has advanced.
    Stored(u32),
    /// Frames about channels: kind, id, number, the rest.
    Channel {
        conn: u32,
        kind: u8,
        id: u32,
        number: u64,
        rest: Vec<u8>,
    },
    /// The result of storing a message of the driver.
    Own {
        ticket: u64,
        code: u16,
        text: String,
    },
    /// Another node has admitted us.
    Welcome {
        conn: u32,
        version: u16,
        map: Vec<u8>,
    },
    /// A control frame of another node.
    Node {
        conn: u32,
        kind: u16,
        number: u64,
        body: Vec<u8>,
    },
    /// A new link has announced all its interest.
    Synced(u32),
    /// The node has processed everything before the PING.
    Pong {
        conn: u32,
        token: u64,
    },
    /// Two exclusive services have the same topic; the other one is behind this link.
    Conflict {
        conn: u32,
        topic: String,
    },
    /// A provider of a shared service is behind a link.
    Provider {
        conn: u32,
        service: u32,
        topic: String,
        flags: u8,
    },
    /// Another node asks whether a provider here is willing to take a call.
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
        /// The request is from another node.
        remote: bool,
    },
    /// The requester of a shared service no longer waits.
    Cancel {
        conn: u32,
        number: u64,
    },
    /// The answer to an ASK frame.
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
    /// The peer closes the connection.
    Close {
        conn: u32,
        code: u16,
        text: String,
    },
    /// The peer has violated the protocol; CLOSE is queued.
    Fail {
        conn: u32,
        code: u16,
        text: String,
    },
    /// The connection waits for a slow one: call tick.
    Wait(u32),
    /// Read again; only its publishes wait.
    Read(u32),
    /// Read no more from it, until `Resume`.
    Pause(u32),
    /// Call `resume`, and read again.
    Resume(u32),
    /// Matching regular expressions took long: stop reading, process other connections, then do as for `Resume`.
    Yield(u32),
}
