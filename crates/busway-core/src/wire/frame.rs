//! The meaning of frames: kinds, flags, error codes, and checked reading and writing of their parts.
//!
//! `docs/protocol.md` is the specification.

/// The highest supported protocol version.
pub const VERSION: u16 = 1;
pub const MAGIC: &[u8; 4] = b"BWAY";
/// Bytes before the body of a message or the ids of a delivery.
pub const HEAD: usize = 16;

pub mod kind {
    pub const HELLO: u8 = 0x01;
    pub const WELCOME: u8 = 0x02;
    pub const CLOSE: u8 = 0x03;
    pub const PING: u8 = 0x04;
    pub const PONG: u8 = 0x05;
    pub const AWAY: u8 = 0x06;
    pub const FLOW: u8 = 0x07;
    pub const TOPIC: u8 = 0x08;
    pub const SENDER: u8 = 0x09;
    pub const STREAM: u8 = 0x0a;
    pub const SERVERS: u8 = 0x0b;
    pub const CHALLENGE: u8 = 0x0c;
    pub const LOGIN: u8 = 0x0d;
    pub const PUBLISH: u8 = 0x10;
    pub const PUSH: u8 = 0x11;
    pub const REQUEST: u8 = 0x12;
    pub const REPLY: u8 = 0x14;
    pub const CANCEL: u8 = 0x15;
    pub const ACCEPT: u8 = 0x16;
    pub const DELIVER: u8 = 0x18;
    pub const OFFER: u8 = 0x19;
    pub const CALL: u8 = 0x1a;
    pub const MISSED: u8 = 0x1b;
    pub const WITHDRAW: u8 = 0x1c;
    pub const ASK: u8 = 0x1d;
    pub const RECORD: u8 = 0x1e;
    pub const GAP: u8 = 0x1f;
    pub const SUBSCRIBE: u8 = 0x20;
    pub const UNSUBSCRIBE: u8 = 0x21;
    pub const SERVE: u8 = 0x22;
    pub const UNSERVE: u8 = 0x23;
    pub const HOLD: u8 = 0x24;
    pub const RESULT: u8 = 0x28;
    pub const STORED: u8 = 0x29;
    pub const CHANNEL: u8 = 0x30;
    pub const UNCHANNEL: u8 = 0x31;
    pub const TAKE: u8 = 0x32;
    pub const ACK: u8 = 0x33;
    pub const NACK: u8 = 0x34;
    // On links
    pub const NODE: u8 = 0x40;
    pub const INTEREST: u8 = 0x41;
}

pub mod flag {
    /// Of all frames with a body.
    pub const FIELDS: u8 = 0x01;
    // PUBLISH
    pub const CONFIRM: u8 = 0x02;
    pub const DURABLE: u8 = 0x04;
    pub const UNKEEP: u8 = 0x20;
    pub const TIMES: u8 = 0x40;
    // PUBLISH and DELIVER
    pub const POST: u8 = 0x08;
    pub const PIN: u8 = 0x10;
    // DELIVER
    pub const KEPT: u8 = 0x02;
    pub const WITHDRAWN: u8 = 0x04;
    pub const PUSHED: u8 = 0x20;
    pub const KEEP: u8 = 0x40;
    pub const REQUESTED: u8 = 0x80;
    // RECORD
    pub const REPLAY: u8 = 0x02;
    pub const LAST: u8 = 0x04;
    pub const CHANNEL: u8 = 0x08;
    // STORED
    pub const AGAIN: u8 = 0x01;
    // REQUEST
    pub const GATHER: u8 = 0x02;
    // REQUEST and SERVE
    pub const LOCAL: u8 = 0x04;
    pub const REMOTE: u8 = 0x08;
    // REPLY
    pub const ERROR: u8 = 0x04;
    pub const PARTIAL: u8 = 0x08;
    pub const END: u8 = 0x10;
    // SUBSCRIBE
    pub const NO_ECHO: u8 = 0x01;
    pub const WATCH: u8 = 0x02;
    pub const LISTEN: u8 = 0x04;
    pub const SINCE: u8 = 0x08;
    pub const SUBSCRIBE_LOCAL: u8 = 0x10;
    pub const SUBSCRIBE_REMOTE: u8 = 0x20;
    // SERVE
    pub const SHARED: u8 = 0x01;
    pub const ASKS: u8 = 0x02;
    // SUBSCRIBE and SERVE
    pub const WAIT: u8 = 0x40;
    // HOLD
    pub const FULL: u8 = 0x01;
    // FLOW
    pub const STOP: u8 = 0x01;
    // SERVERS
    pub const APART: u8 = 0x01;
    // INTEREST
    pub const SYNCED: u8 = 0x01;
    // NODE
    pub const ORDERED: u8 = 0x01;
}

/// Entries of INTEREST.
pub mod op {
    pub const SUBSCRIBE: u8 = 1;
    pub const UNSUBSCRIBE: u8 = 2;
    pub const SERVE: u8 = 3;
    pub const UNSERVE: u8 = 4;
}

/// The scope of a message or a subscription.
pub mod scope {
    pub const GLOBAL: u8 = 0;
    /// Clients of the same node.
    pub const LOCAL: u8 = 1;
    /// Clients of other nodes.
    pub const REMOTE: u8 = 2;

    /// The scope in two bits of flags; both or none: global.
    pub fn of(flags: u8, local: u8, remote: u8) -> u8 {
        match (flags & local != 0, flags & remote != 0) {
            (true, false) => LOCAL,
            (false, true) => REMOTE,
            _ => GLOBAL,
        }
    }
}

pub mod policy {
    pub const BLOCK: u8 = 0;
    pub const DROP_OLDEST: u8 = 1;
    pub const DROP_NEW: u8 = 2;
    pub const DISCONNECT: u8 = 3;
}

macro_rules! codes {
    ($($name:ident = $code:literal, $survives:literal;)*) => {
        pub mod code { $(pub const $name: u16 = $code;)* }
        /// All error codes: name, number, whether the connection survives.
        pub const ERRORS: &[(&str, u16, bool)] = &[$((stringify!($name), $code, $survives)),*];
    };
}

codes! {
    OK = 0, true;
    PROTOCOL = 1, false;
    VERSION = 2, false;
    FRAME_TOO_LARGE = 3, false;
    HANDSHAKE = 4, false;
    UNAUTHORIZED = 5, false;
    IDLE = 6, false;
    SLOW_CONSUMER = 7, false;
    SESSION_TAKEN = 8, false;
    GOING_AWAY = 9, false;
    TOO_MANY_CONNECTIONS = 10, false;
    CLUSTER = 11, false;
    DUPLICATE_NODE = 12, false;
    LINKED = 13, false;
    SESSION_SECRET = 14, false;
    REVOKED = 15, false;
    INVALID_TOPIC = 20, true;
    INVALID_PATTERN = 21, true;
    TOPIC_TOO_LONG = 22, true;
    WILDCARD = 23, true;
    RESERVED = 24, true;
    FIELDS_TOO_LARGE = 25, true;
    INVALID_RULE = 26, true;
    INVALID_FIELDS = 27, true;
    TOO_COMPLEX = 29, true;
    TOO_MANY_SUBSCRIPTIONS = 30, true;
    DUPLICATE = 31, true;
    UNKNOWN = 32, true;
    TOO_MANY_KEPT = 33, true;
    STORE_FAILED = 34, true;
    NO_STREAM = 35, true;
    NO_CHANNEL = 36, true;
    TOO_OLD = 37, true;
    CHANNEL_TAKEN = 38, true;
    INVALID_SETTING = 39, true;
    NO_RESPONDERS = 40, true;
    SERVICE_TAKEN = 41, true;
    SERVICE_GONE = 42, true;
    HANDLER_ERROR = 43, true;
    NO_CONSUMER = 44, true;
    TOO_MANY_PENDING = 45, true;
    REFUSED = 46, true;
    ACK_LATE = 47, true;
    OUT_OF_RANGE = 48, true;
    TOO_MANY_STREAMS = 49, true;
    NO_SPACE = 50, true;
    FORBIDDEN = 60, true;
}

/// A refused frame or call: its code says whether the connection survives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub code: u16,
    pub text: String,
}

impl Fault {
    pub fn new(code: u16, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    pub fn too_complex(topic: &str) -> Self {
        let text = format!(
            "{topic:?} has to be compared with too many patterns or regular expressions; use a shorter topic, or fewer wildcards"
        );
        Self::new(code::TOO_COMPLEX, text)
    }

    pub fn protocol(text: impl Into<String>) -> Self {
        Self::new(code::PROTOCOL, text)
    }
}

pub type Checked<T> = Result<T, Fault>;

/// Takes only the kind: a reference to `Parts` would keep it in memory, which slows down each message.
#[cold]
fn short(kind: u8) -> Fault {
    Fault::protocol(format!("frame of kind {kind:#04x} is too short"))
}

/// Reads the parts of one frame in order; every length is checked.
pub struct Parts<'a> {
    rest: &'a [u8],
    kind: u8,
}

impl<'a> Parts<'a> {
    /// `frame` is a whole frame; reading begins after kind and flags.
    #[inline]
    pub fn of(frame: &'a [u8]) -> Self {
        Self { rest: &frame[6..], kind: frame[4] }
    }

    #[inline]
    fn cut<const N: usize>(&mut self) -> Checked<[u8; N]> {
        let Some((head, rest)) = self.rest.split_first_chunk::<N>() else { return Err(short(self.kind)) };
        self.rest = rest;
        Ok(*head)
    }

    #[inline]
    pub fn bytes(&mut self, size: usize) -> Checked<&'a [u8]> {
        if size > self.rest.len() {
            return Err(short(self.kind));
        }
        let (head, rest) = self.rest.split_at(size);
        self.rest = rest;
        Ok(head)
    }

    pub fn u8(&mut self) -> Checked<u8> {
        self.cut::<1>().map(|b| b[0])
    }

    #[inline]
    pub fn u16(&mut self) -> Checked<u16> {
        self.cut().map(u16::from_le_bytes)
    }

    #[inline]
    pub fn u32(&mut self) -> Checked<u32> {
        self.cut().map(u32::from_le_bytes)
    }

    #[inline]
    pub fn u64(&mut self) -> Checked<u64> {
        self.cut().map(u64::from_le_bytes)
    }

    pub fn str16(&mut self) -> Checked<&'a str> {
        let size = self.u16()? as usize;
        text(self.bytes(size)?)
    }

    pub fn bin32(&mut self) -> Checked<&'a [u8]> {
        let size = self.u32()? as usize;
        self.bytes(size)
    }

    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    pub fn rest_text(self) -> Checked<&'a str> {
        text(self.rest)
    }
}

fn text(bytes: &[u8]) -> Checked<&str> {
    std::str::from_utf8(bytes).map_err(|_| Fault::protocol("text that is not UTF-8"))
}

/// The body of a message, which the broker copies unchanged.
#[derive(Debug, Clone, Copy)]
pub struct Body<'a> {
    pub time: i64,
    pub number: u64,
    pub fields: &'a [u8],
    pub payload: &'a [u8],
}

impl<'a> Body<'a> {
    /// Reads the body in these bytes.
    pub fn of(bytes: &'a [u8], flags: u8) -> Checked<Self> {
        Self::read(Parts { rest: bytes, kind: 0 }, flags)
    }

    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub fn read(mut parts: Parts<'a>, flags: u8) -> Checked<Self> {
        let time = parts.u64()?.cast_signed();
        let number = parts.u64()?;
        let fields = if flags & flag::FIELDS == 0 { &[][..] } else { parts.bin32()? };
        Ok(Self { time, number, fields, payload: parts.rest() })
    }
}

/// Writes a frame of any kind but the hot ones: begin, append parts; dropping it sets the length.
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
    at: usize,
}

impl<'a> Writer<'a> {
    pub fn new(out: &'a mut Vec<u8>, kind: u8, flags: u8) -> Self {
        let at = out.len();
        out.extend_from_slice(&[0, 0, 0, 0, kind, flags]);
        Self { out, at }
    }

    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        self.out.extend_from_slice(bytes);
        self
    }

    #[must_use]
    pub fn u8(self, value: u8) -> Self {
        self.bytes(&[value])
    }

    #[must_use]
    pub fn u16(self, value: u16) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    #[must_use]
    pub fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    #[must_use]
    pub fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    #[must_use]
    pub fn str16(self, text: &str) -> Self {
        self.u16(text.len() as u16).bytes(text.as_bytes())
    }

    #[must_use]
    pub fn bin32(self, bytes: &[u8]) -> Self {
        self.u32(bytes.len() as u32).bytes(bytes)
    }

    /// Ends the frame, and returns its size in bytes.
    pub fn end(self) -> usize {
        let size = self.out.len() - self.at;
        self.out[self.at..self.at + 4].copy_from_slice(&(size as u32 - 4).to_le_bytes());
        size
    }
}
