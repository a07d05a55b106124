//! Values as `MessagePack`: their length, validation, and normal form.
//!
//! Two values are equal exactly when the bytes of their normal forms are: shortest heads, shortest numbers and lengths,
//! floats as 64 bits, map keys in byte order. It is the encoding of msgspec, apart from the order of keys.

use std::borrow::Cow;

/// The maximum nesting of lists and maps.
pub const DEPTH: usize = 16;

/// The head of a value; lengths are those of the data after the head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Head {
    Nil,
    Bool(bool),
    /// Zero or more.
    Uint(u64),
    /// Less than zero.
    Int(i64),
    Float(f64),
    Str(usize),
    Bin(usize),
    List(usize),
    Map(usize),
}

/// The head of a value and the rest; None: truncated, or an unknown type.
#[inline]
pub fn head(bytes: &[u8]) -> Option<(Head, &[u8])> {
    fn number<const N: usize>(rest: &[u8]) -> Option<([u8; N], &[u8])> {
        rest.split_first_chunk::<N>().map(|(head, rest)| (*head, rest))
    }
    macro_rules! big {
        ($kind:ty, $rest:expr, $make:expr) => {{
            let (raw, rest) = number($rest)?;
            ($make(<$kind>::from_be_bytes(raw)), rest)
        }};
    }
    let signed = |value: i64| u64::try_from(value).map_or(Head::Int(value), Head::Uint);
    let (&first, rest) = bytes.split_first()?;
    Some(match first {
        0x00..=0x7f => (Head::Uint(first.into()), rest),
        0x80..=0x8f => (Head::Map((first & 0x0f).into()), rest),
        0x90..=0x9f => (Head::List((first & 0x0f).into()), rest),
        0xa0..=0xbf => (Head::Str((first & 0x1f).into()), rest),
        0xc0 => (Head::Nil, rest),
        0xc2 | 0xc3 => (Head::Bool(first == 0xc3), rest),
        0xc4 => big!(u8, rest, |size| Head::Bin(usize::from(size))),
        0xc5 => big!(u16, rest, |size| Head::Bin(usize::from(size))),
        0xc6 => big!(u32, rest, |size| Head::Bin(size as usize)),
        0xca => big!(f32, rest, |value| Head::Float(f64::from(value))),
        0xcb => big!(f64, rest, Head::Float),
        0xcc => big!(u8, rest, |value| Head::Uint(u64::from(value))),
        0xcd => big!(u16, rest, |value| Head::Uint(u64::from(value))),
        0xce => big!(u32, rest, |value| Head::Uint(u64::from(value))),
        0xcf => big!(u64, rest, Head::Uint),
        0xd0 => big!(i8, rest, |value| signed(i64::from(value))),
        0xd1 => big!(i16, rest, |value| signed(i64::from(value))),
        0xd2 => big!(i32, rest, |value| signed(i64::from(value))),
        0xd3 => big!(i64, rest, signed),
        0xd9 => big!(u8, rest, |size| Head::Str(usize::from(size))),
        0xda => big!(u16, rest, |size| Head::Str(usize::from(size))),
        0xdb => big!(u32, rest, |size| Head::Str(size as usize)),
        0xdc => big!(u16, rest, |size| Head::List(usize::from(size))),
        0xdd => big!(u32, rest, |size| Head::List(size as usize)),
        0xde => big!(u16, rest, |size| Head::Map(usize::from(size))),
        0xdf => big!(u32, rest, |size| Head::Map(size as usize)),
        0xe0..=0xff => (Head::Int(i64::from(first.cast_signed())), rest),
        0xc1 | 0xc7..=0xc9 | 0xd4..=0xd8 => return None,
    })
}

/// Returns the rest after a valid value, or the error in the value.
#[inline]
pub fn skip(bytes: &[u8], depth: usize) -> Result<&[u8], &'static str> {
    const CUT: &str = "is cut off";
    let Some((head, rest)) = head(bytes) else {
        return Err(match bytes.first() {
            Some(0xc1 | 0xc7..=0xc9 | 0xd4..=0xd8) => "has an extension type; give numbers, text, bytes, lists or maps",
            _ => CUT,
        });
    };
    match head {
        Head::Str(size) => {
            let (text, rest) = rest.split_at_checked(size).ok_or(CUT)?;
            std::str::from_utf8(text).map_err(|_| "has text that is not UTF-8")?;
            Ok(rest)
        }
        Head::Bin(size) => rest.get(size..).ok_or(CUT),
        Head::List(size) => skip_items(rest, size, false, depth),
        Head::Map(size) => skip_items(rest, size, true, depth),
        _ => Ok(rest),
    }
}

fn skip_items(mut rest: &[u8], size: usize, keys: bool, depth: usize) -> Result<&[u8], &'static str> {
    if depth >= DEPTH {
        return Err("is nested too deep");
    }
    for _ in 0..size {
        if keys {
            if !matches!(head(rest), None | Some((Head::Str(_), _))) {
                return Err("has a map with a key that is not text");
            }
            rest = skip(rest, depth + 1)?;
        }
        rest = skip(rest, depth + 1)?;
    }
    Ok(rest)
}

/// The first of consecutive values in `bytes`, and the rest; both empty if there is none.
#[inline]
pub fn next(bytes: &[u8]) -> (&[u8], &[u8]) {
    let rest = skip(bytes, 0).unwrap_or_default();
    bytes.split_at(bytes.len() - rest.len())
}

/// The text of a value, if it is text.
#[inline]
pub fn text(value: &[u8]) -> Option<&str> {
    match head(value)? {
        (Head::Str(size), rest) => std::str::from_utf8(rest.get(..size)?).ok(),
        _ => None,
    }
}

/// The bytes of a value that is text or bytes.
#[inline]
pub fn content(value: &[u8]) -> Option<&[u8]> {
    match head(value)? {
        (Head::Str(size) | Head::Bin(size), rest) => rest.get(..size),
        _ => None,
    }
}

/// The normal form of a valid value; borrowed if it already has that form.
#[inline]
pub fn normal(value: &[u8]) -> Cow<'_, [u8]> {
    if is_short(value) {
        return Cow::Borrowed(value);
    }
    let mut out = Vec::with_capacity(value.len());
    write_normal(value, &mut out);
    if out == value {
        Cow::Borrowed(value)
    } else {
        Cow::Owned(out)
    }
}

/// True if a value that is no list and no map is in normal form; it writes nothing.
#[inline]
fn is_short(value: &[u8]) -> bool {
    let Some(&first) = value.first() else { return true };
    // Short text, small numbers, nil and booleans have only one form.
    if matches!(first, 0x00..=0x7f | 0xa0..=0xc4 | 0xe0..=0xff) {
        return true;
    }
    match (first, head(value)) {
        (0xd9, Some((Head::Str(size), _))) => size > 31,
        (0xda, Some((Head::Str(size), _))) | (0xc5, Some((Head::Bin(size), _))) => size > 0xff,
        (0xdb, Some((Head::Str(size), _))) | (0xc6, Some((Head::Bin(size), _))) => size > 0xffff,
        (0xcc, Some((Head::Uint(number), _))) => number > 0x7f,
        (0xcd, Some((Head::Uint(number), _))) => number > 0xff,
        (0xce, Some((Head::Uint(number), _))) => number > 0xffff,
        (0xcf, Some((Head::Uint(number), _))) => number > 0xffff_ffff,
        (0xd0, Some((Head::Int(number), _))) => number < -32,
        (0xd1, Some((Head::Int(number), _))) => number < -0x80,
        (0xd2, Some((Head::Int(number), _))) => number < -0x8000,
        (0xd3, Some((Head::Int(number), _))) => number < -0x8000_0000,
        (0xcb, Some((Head::Float(number), _))) => !number.is_nan() && (number != 0.0 || number.is_sign_positive()),
        _ => false,
    }
}

/// Appends the normal form of the first value in `bytes`, and returns the rest.
fn write_normal<'a>(bytes: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
    let Some((head, rest)) = head(bytes) else { return &[] };
    write_head(head, out);
    match head {
        Head::Str(size) | Head::Bin(size) => {
            let (content, rest) = rest.split_at(size.min(rest.len()));
            out.extend_from_slice(content);
            rest
        }
        Head::List(size) => (0..size).fold(rest, |rest, _| write_normal(rest, out)),
        Head::Map(size) => {
            let mut pairs = Vec::new();
            let mut rest = rest;
            for _ in 0..size {
                let (key, value) = next(rest);
                let (value, after) = next(value);
                pairs.push((content(key).unwrap_or_default(), key, value));
                rest = after;
            }
            pairs.sort_by_key(|(text, ..)| *text);
            for (_, key, value) in pairs {
                write_normal(key, out);
                write_normal(value, out);
            }
            rest
        }
        _ => rest,
    }
}

/// Appends a head in its shortest form; for numbers and the like that is the whole value.
pub fn write_head(head: Head, out: &mut Vec<u8>) {
    /// (longest that fits the first byte, first byte of those, then those for 8, 16 and 32 bits of length)
    fn size(size: usize, short: Option<(usize, u8)>, long: [Option<u8>; 3], out: &mut Vec<u8>) {
        match (size, short, long) {
            (_, Some((most, first)), _) if size <= most => out.push(first | size as u8),
            (..=0xff, _, [Some(first), ..]) => out.extend_from_slice(&[first, size as u8]),
            (..=0xffff, _, [_, Some(first), _]) => {
                out.push(first);
                out.extend_from_slice(&(size as u16).to_be_bytes());
            }
            (_, _, [.., first]) => {
                out.extend(first);
                out.extend_from_slice(&(size as u32).to_be_bytes());
            }
        }
    }
    let mut tagged = |first: u8, bytes: &[u8]| {
        out.push(first);
        out.extend_from_slice(bytes);
    };
    match head {
        Head::Nil => out.push(0xc0),
        Head::Bool(yes) => out.push(0xc2 + u8::from(yes)),
        Head::Uint(value) => match value {
            ..0x80 => out.push(value as u8),
            0x80..=0xff => tagged(0xcc, &[value as u8]),
            0x100..=0xffff => tagged(0xcd, &(value as u16).to_be_bytes()),
            0x1_0000..=0xffff_ffff => tagged(0xce, &(value as u32).to_be_bytes()),
            _ => tagged(0xcf, &value.to_be_bytes()),
        },
        Head::Int(value) => match value {
            -32.. => out.push((value as i8).cast_unsigned()),
            -0x80.. => tagged(0xd0, &(value as i8).to_be_bytes()),
            -0x8000.. => tagged(0xd1, &(value as i16).to_be_bytes()),
            -0x8000_0000.. => tagged(0xd2, &(value as i32).to_be_bytes()),
            _ => tagged(0xd3, &value.to_be_bytes()),
        },
        // Zero has a sign and NaN many representations; the normal form has one of each.
        Head::Float(0.0) => tagged(0xcb, &0.0_f64.to_be_bytes()),
        Head::Float(value) if value.is_nan() => tagged(0xcb, &f64::NAN.to_be_bytes()),
        Head::Float(value) => tagged(0xcb, &value.to_be_bytes()),
        Head::Str(length) => size(length, Some((31, 0xa0)), [Some(0xd9), Some(0xda), Some(0xdb)], out),
        Head::Bin(length) => size(length, None, [Some(0xc4), Some(0xc5), Some(0xc6)], out),
        Head::List(length) => size(length, Some((15, 0x90)), [None, Some(0xdc), Some(0xdd)], out),
        Head::Map(length) => size(length, Some((15, 0x80)), [None, Some(0xde), Some(0xdf)], out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_form_for_equal_values() {
        let same: [&[&[u8]]; 8] = [
            &[&[7], &[0xcc, 7], &[0xcd, 0, 7], &[0xd3, 0, 0, 0, 0, 0, 0, 0, 7]],
            &[&[0xff], &[0xd0, 0xff], &[0xd2, 0xff, 0xff, 0xff, 0xff]],
            &[&[0xcb, 0, 0, 0, 0, 0, 0, 0, 0], &[0xca, 0x80, 0, 0, 0], &[0xcb, 0x80, 0, 0, 0, 0, 0, 0, 0]],
            &[&[0xa1, b'x'], &[0xd9, 1, b'x'], &[0xdb, 0, 0, 0, 1, b'x']],
            &[&[0xc4, 1, b'x'], &[0xc5, 0, 1, b'x']],
            &[&[0x92, 1, 2], &[0xdc, 0, 2, 1, 0xcc, 2]],
            &[&[0x82, 0xa1, b'a', 1, 0xa1, b'b', 2], &[0x82, 0xa1, b'b', 2, 0xd9, 1, b'a', 1]],
            &[&[0xc3]],
        ];
        for (i, forms) in same.iter().enumerate() {
            assert!(matches!(normal(forms[0]), Cow::Borrowed(_)), "{:?}", forms[0]);
            for form in *forms {
                assert_eq!(skip(form, 0), Ok(&[][..]));
                assert_eq!(*normal(form), *forms[0], "{form:?}");
                for (_, others) in same.iter().enumerate().filter(|(j, _)| *j != i) {
                    assert_ne!(normal(form), normal(others[0]), "{form:?}");
                }
            }
        }
    }

    #[test]
    fn unsound_values() {
        let deep = |levels: usize| [vec![0x91; levels], vec![0xc0]].concat();
        assert!(skip(&deep(DEPTH), 0).is_ok());
        for bad in
            [&[][..], &[0xa2, b'x'], &[0xa1, 0xff], &[0xd4, 1, 1], &[0xc1], &[0x91], &[0x81, 1, 1], &deep(DEPTH + 1)]
        {
            assert!(skip(bad, 0).is_err(), "{bad:?}");
        }
    }
}
