//! The fields of a message: a checked view of names and values without copies.

use crate::wire::frame::{code, Checked, Fault};
use crate::wire::msgpack::{head, skip, write_head, Head};

/// The maximum number of fields of a message.
pub const NAMES: usize = 255;
/// Up to this number, fields are read without allocation, and names compared one by one.
const FEW: usize = 16;

/// A name and a value, owned.
pub type Pair = (Box<str>, Box<[u8]>);

/// Names and values in the order of the message.
#[derive(Debug, Default)]
pub struct Fields<'a> {
    few: [(&'a str, &'a [u8]); FEW],
    size: usize,
    /// All fields, if there are more than a few.
    many: Vec<(&'a str, &'a [u8])>,
}

impl<'a> Fields<'a> {
    /// Reads the fields of a body; no bytes are no fields.
    pub fn read(bytes: &'a [u8]) -> Checked<Self> {
        let mut fields = Self::default();
        if bytes.is_empty() {
            return Ok(fields);
        }
        let Some((Head::Map(size), mut rest)) = head(bytes) else {
            return Err(fault("fields are not a MessagePack map"));
        };
        if size > NAMES {
            return Err(fault(format!("{size} fields, {NAMES} are allowed")));
        }
        if size > FEW {
            fields.many.resize(size, Default::default());
        }
        fields.size = size;
        let entries = if size > FEW { &mut fields.many[..] } else { &mut fields.few[..size] };
        for entry in entries {
            let Some((Head::Str(length), after)) = head(rest) else {
                return Err(fault("fields have a name that is cut off or not text"));
            };
            let Some((name, value)) = after.split_at_checked(length) else {
                return Err(fault("fields have a name that is cut off"));
            };
            let name = std::str::from_utf8(name).map_err(|_| fault("fields have a name that is not UTF-8"))?;
            if let Some(reason) = bad_name(name) {
                return Err(fault(format!("field {name:?} {reason}")));
            }
            rest = skip(value, 0).map_err(|reason| fault(format!("field {name:?} {reason}")))?;
            *entry = (name, &value[..value.len() - rest.len()]);
        }
        if !rest.is_empty() {
            return Err(fault(format!("{} bytes follow the fields", rest.len())));
        }
        match fields.twice() {
            Some(name) => Err(fault(format!("field {name:?} is there twice"))),
            None => Ok(fields),
        }
    }

    fn entries(&self) -> &[(&'a str, &'a [u8])] {
        if self.size > FEW {
            &self.many
        } else {
            &self.few[..self.size]
        }
    }

    fn twice(&self) -> Option<&'a str> {
        let entries = self.entries();
        if entries.len() <= FEW {
            let seen = |i: usize, name| entries[..i].iter().any(|(other, _)| *other == name);
            return entries.iter().enumerate().find(|(i, (name, _))| seen(*i, *name)).map(|(_, (name, _))| *name);
        }
        let mut names: Vec<_> = entries.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
    }

    /// The value of a field as it was sent.
    #[inline]
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        self.entries().iter().find(|(other, _)| *other == name).map(|(_, value)| *value)
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&'a str, &'a [u8])> + '_ {
        self.entries().iter().copied()
    }

    pub fn len(&self) -> usize {
        self.size
    }

    pub fn is_empty(&self) -> bool {
        self.size == 0
    }
}

/// Merges the fields with the server's own, which replace equal names.
pub fn merge(fields: &Fields<'_>, defaults: &[Pair]) -> Checked<Vec<u8>> {
    let mut kept: Vec<(&str, &[u8])> = fields.iter().collect();
    kept.retain(|(name, _)| !defaults.iter().any(|(other, _)| **other == **name));
    kept.extend(defaults.iter().map(|(name, value)| (&**name, &**value)));
    if kept.len() > NAMES {
        return Err(fault(format!("{} fields with those of the server, {NAMES} are allowed", kept.len())));
    }
    let mut out = Vec::with_capacity(3 + kept.iter().map(|(name, value)| 5 + name.len() + value.len()).sum::<usize>());
    write_head(Head::Map(kept.len()), &mut out);
    for (name, value) in kept {
        write_text(name, &mut out);
        out.extend_from_slice(value);
    }
    Ok(out)
}

/// Writes a text as a value.
pub fn write_text(text: &str, out: &mut Vec<u8>) {
    write_head(Head::Str(text.len()), out);
    out.extend_from_slice(text.as_bytes());
}

/// Checks the name of a field.
#[inline]
pub fn bad_name(name: &str) -> Option<&'static str> {
    match name.as_bytes() {
        [] => Some("has no name"),
        [b'.', ..] => Some("has a name that begins with \".\", which is reserved"),
        b"msg" => Some("has a name that stands for the payload"),
        // The control characters above 0x7f have two bytes, and the first is this one.
        bytes if bytes.iter().any(|byte| *byte < 0x20 || matches!(byte, 0x7f | 0xc2)) => {
            name.chars().any(char::is_control).then_some("has a control character in its name")
        }
        _ => None,
    }
}

fn fault(text: impl Into<String>) -> Fault {
    Fault::new(code::INVALID_FIELDS, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        write_head(Head::Map(entries.len()), &mut out);
        for (name, value) in entries {
            write_head(Head::Str(name.len()), &mut out);
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(value);
        }
        out
    }

    #[test]
    fn reads() {
        let bytes = map(&[("a", &[1]), ("é b", &[0x91, 0xc0])]);
        let fields = Fields::read(&bytes).unwrap();
        assert_eq!(
            (fields.get("a"), fields.get("é b"), fields.get("b")),
            (Some(&[1][..]), Some(&[0x91, 0xc0][..]), None)
        );
        assert!(Fields::read(&[]).unwrap().is_empty() && Fields::read(&[0x80]).unwrap().is_empty());
    }

    #[test]
    fn refuses() {
        let names: Vec<_> = (0..256).map(|i| format!("n{i}")).collect();
        let many: Vec<_> = names.iter().map(|name| (&**name, &[1][..])).collect();
        assert_eq!(Fields::read(&map(&many[1..])).unwrap().len(), NAMES);
        let mut twice = many[..200].to_vec();
        twice.push(("n7", &[2]));
        for (bytes, word) in [
            (map(&[("", &[1])]), "no name"),
            (map(&[(".x", &[1])]), "\".x\""),
            (map(&[("msg", &[1])]), "\"msg\""),
            (map(&[("a\u{85}", &[1])]), "control"),
            (map(&[("a\nb", &[1])]), "control"),
            (map(&[("a", &[1]), ("b", &[1]), ("a", &[2])]), "\"a\" is there twice"),
            (map(&twice), "\"n7\" is there twice"),
            (map(&many), "256"),
            (map(&[("x", &[0xd4, 1, 1])]), "\"x\" has an extension"),
            (vec![0x81, 0xa1], "cut off"),
            (vec![0x81, 1, 1], "not text"),
            (vec![0x80, 0x80], "1 bytes follow"),
            (vec![0x93, 1, 2, 3], "map"),
        ] {
            let fault = Fields::read(&bytes).unwrap_err();
            assert_eq!(fault.code, code::INVALID_FIELDS);
            assert!(fault.text.contains(word), "{} / {word}", fault.text);
        }
    }

    #[test]
    fn the_server_wins() {
        let bytes = map(&[("a", &[1]), ("b", &[2])]);
        let own: Vec<Pair> = vec![("b".into(), [3].into()), ("c".into(), [4].into())];
        let merged = merge(&Fields::read(&bytes).unwrap(), &own).unwrap();
        assert_eq!(merged, map(&[("a", &[1]), ("b", &[3]), ("c", &[4])]));
        assert_eq!(merge(&Fields::default(), &own).unwrap(), map(&[("b", &[3]), ("c", &[4])]));
    }
}
