//! Little-endian words and variable-length numbers (seven bits per byte, the lowest first) for the index.

pub trait Writer {
    fn u64(&mut self, value: u64);
    fn i64(&mut self, value: i64) {
        self.u64(value.cast_unsigned());
    }
    fn short(&mut self, value: u64);
    /// Appends a variable-length number that may be negative.
    fn signed(&mut self, value: i64) {
        self.short((value << 1 ^ value >> 63).cast_unsigned());
    }
}

impl Writer for Vec<u8> {
    fn u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn short(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.push(value as u8);
    }
}

/// Reads from the front; None: the bytes end too early.
pub trait Reader<'a> {
    fn bytes(&mut self, size: usize) -> Option<&'a [u8]>;
    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes(8)?.try_into().ok()?))
    }
    fn i64(&mut self) -> Option<i64> {
        self.u64().map(u64::cast_signed)
    }
    fn short(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = u64::from(self.bytes(1)?[0]);
            value |= (byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
    fn signed(&mut self) -> Option<i64> {
        self.short().map(|value| (value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }
    /// Reads a number of items, of which each has at least this size.
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
