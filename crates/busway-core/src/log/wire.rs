//! Little-endian words into and out of bytes, for the index.

pub trait Writer {
    fn u64(&mut self, value: u64);
    fn i64(&mut self, value: i64) {
        self.u64(value.cast_unsigned());
    }
}

impl Writer for Vec<u8> {
    fn u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }
}

/// Takes from the front; None: not enough is there.
pub trait Reader<'a> {
    fn bytes(&mut self, size: usize) -> Option<&'a [u8]>;
    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes(8)?.try_into().ok()?))
    }
    fn i64(&mut self) -> Option<i64> {
        self.u64().map(u64::cast_signed)
    }
    /// How many items of at least this size follow.
    fn count(&mut self, least: usize) -> Option<usize>;
}

impl<'a> Reader<'a> for &'a [u8] {
    fn bytes(&mut self, size: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.split_at_checked(size)?;
        *self = rest;
        Some(taken)
    }

    fn count(&mut self, least: usize) -> Option<usize> {
        let count = self.u64()?;
        (count <= (self.len() / least) as u64).then_some(count as usize)
    }
}
