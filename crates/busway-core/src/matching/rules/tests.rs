//! Small cases; the Python tests compare the rules with a model.

use super::*;

fn str(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    write_head(Head::Str(text.len()), &mut out);
    out.extend_from_slice(text.as_bytes());
    out
}

fn compile(rules: &[(&str, &str, &[u8])]) -> Checked<Rules> {
    let mut out = vec![0x81];
    out.extend(str("where"));
    write_head(Head::List(rules.len()), &mut out);
    for (name, op, argument) in rules {
        out.push(0x93);
        out.extend([str(name), str(op), argument.to_vec()].concat());
    }
    Rules::compile(&out)
}

fn ask(rules: &Rules, fields: &[(&str, &[u8])], payload: &[u8]) -> Outcome {
    let mut bytes = Vec::new();
    write_head(Head::Map(fields.len()), &mut bytes);
    bytes.extend(fields.iter().flat_map(|(name, value)| [str(name), value.to_vec()].concat()));
    let fields = Fields::read(&bytes).unwrap();
    let seen = Seen { fields: &fields, topic: "a/b", sender: "", session: 0xabc, time: 7, payload };
    rules.hold(&seen)
}

fn cel(text: &str, fields: &[(&str, &[u8])], payload: &[u8]) -> Outcome {
    ask(&compile(&[("", "cel", &str(text))]).unwrap(), fields, payload)
}

#[test]
fn equalities_stand_apart() {
    let rules =
        compile(&[("b", "eq", &[0xcc, 1]), ("c", "any", &[0xc0]), ("a", "eq", &[2]), ("a", "eq", &[3])]).unwrap();
    let expected: [Pair; 2] = [("a".into(), [2].into()), ("b".into(), [1].into())];
    assert_eq!(rules.equalities(), expected);
    assert_eq!(ask(&rules, &[("a", &[2]), ("b", &[1]), ("c", &[1])], b""), Outcome::Fails);
    assert_eq!(ask(&rules, &[("a", &[3]), ("b", &[1]), ("c", &[1])], b""), Outcome::Fails);
    assert!(compile(&[("a", "eq", &[2])]).unwrap().is_plain() && Rules::compile(&[]).unwrap().is_empty());
}

#[test]
fn expressions() {
    let fields: &[(&str, &[u8])] =
        &[("n", &[5]), ("f", &[0xca, 0x40, 0x20, 0, 0]), ("s", b"\xa3abc"), ("l", &[0x92, 1, 2]), ("time", &[9])];
    for (text, expected) in [
        ("n > 3 && f == 2.5 && s.startsWith('a')", Outcome::Holds),
        ("n == 5.0 && n != 5.5", Outcome::Holds),
        (
            "fields.n == 5 && fields['s'] == 'abc' && has(fields.f) && !has(fields.g) && size(fields) == 5",
            Outcome::Holds,
        ),
        ("l.exists(x, x == 2) && 1 in l && l[0] == 1", Outcome::Holds),
        ("topic == 'a/b' && sender == '0000000000000abc' && fields.time == 9", Outcome::Holds),
        ("time == timestamp('1970-01-01T00:00:00.000000007Z')", Outcome::Holds),
        ("payload == b'hello' && text.matches('^h.l+o$') && matches(s, 'b')", Outcome::Holds),
        ("['x', s].exists(y, y.matches('^abc$'))", Outcome::Holds),
        ("s.matches('^b')", Outcome::Fails),
        // Absent is neither a match nor an error; the rest of the expression decides.
        ("absent > 3", Outcome::Fails),
        ("fields.absent > 3", Outcome::Fails),
        ("absent > 3 || n == 5", Outcome::Holds),
        // No boolean, kinds that don't fit, a division by zero: errors.
        ("n", Outcome::Error),
        ("n > 'a'", Outcome::Error),
        ("n / 0 == 1", Outcome::Error),
    ] {
        assert_eq!(cel(text, fields, b"hello"), expected, "{text}");
    }
    assert_eq!(cel("text == ''", &[], b"\xff"), Outcome::Fails);
}

#[test]
fn expressions_that_are_refused() {
    let many = |part: &str| part.repeat(4000 / part.len());
    for (text, reason) in [
        ("n >", "line 1, column 4: "),
        ("n == 1 &&\n  'é' == )", "line 2, column 10: "),
        ("n == 'é' && foo(n)", "line 1, column 16: there is no function foo()"),
        ("s.lowerAscii() == 'a'", "there is no method .lowerAscii()"),
        ("s.matches(s)", "written out; a rule \"re\""),
        ("s.matches('(')", "unclosed group"),
        ("l.exists(x, l.exists(y, x == y))", "can't be nested"),
        ("l.map(x, x + x).map(x, x + x) == l", "can't be nested"),
        ("value == 1", "name one"),
        ("A{b: 1} == 1", "no structs"),
        ("has(n)", "has()"),
        ("", "line 1, column 1: "),
        (&many(" "), "line 1"),
        (&many("("), "nested deeper"),
        (&format!("{}1{}", many("[").split_off(2000), many("]").split_off(2000)), "nested deeper"),
        (&format!("{}1", many("1+")), "nested deeper"),
        (&format!("{}a", many("a.")), "nested deeper"),
        (&format!("{}true", many("!")), ""),
        (&"x".repeat(5000), "5000 bytes"),
    ] {
        let fault = compile(&[("", "cel", &str(text))]).err();
        let said = fault.map(|fault| (fault.code, fault.text)).unwrap_or_default();
        assert!(reason.is_empty() || said.0 == code::INVALID_RULE && said.1.contains(reason), "{text:?}: {said:?}");
    }
}

#[test]
fn the_budget_ends() {
    let list = [vec![0xdc, 0xff, 0xff], vec![1; 65_535]].concat();
    let fields: &[(&str, &[u8])] = &[("l", &list)];
    assert_eq!(cel("size(l) == 65535", fields, b""), Outcome::Holds);
    assert_eq!(cel("l.all(x, l.size() > 1 && x == 1)", fields, b""), Outcome::Error);
    let sum = format!("size({}text) == 0", "text + ".repeat(20));
    assert_eq!(cel(&sum, &[], &vec![b'x'; 1 << 20]), Outcome::Error);
    assert_eq!(cel("text.contains('y')", &[], &vec![b'x'; 8 << 20]), Outcome::Fails);
    assert_eq!(ask(&compile(&[("msg", "re", &str("x*"))]).unwrap(), &[], &vec![b'x'; 8 << 20]), Outcome::Error);
}
