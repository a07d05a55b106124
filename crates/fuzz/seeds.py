"""Writes the corpus that fuzzing begins with, from the vectors of docs/protocol.md and samples: python3 seeds.py FOLDER."""

import json
import struct
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FEED, FRAME, WRITABLE, FULL, READ, COMMIT = 0, 2, 6, 9, 10, 11


def rows(heading: str) -> list[list[str]]:
    """The rows of the table below a heading."""
    page = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    found = []
    for line in page.partition(f"\n### {heading}\n")[2].splitlines():
        if line.startswith("#"):
            break
        if line.startswith("|"):
            found.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
    return found[2:]


def step(client: int, action: int, data: bytes) -> bytes:
    """One step of the script that the engine's driver reads."""
    return bytes([action * 4 + client, len(data)]) + data


def pack(value: object) -> bytes:
    """MessagePack, as much of it as the seeds need."""
    match value:
        case None | bool():
            return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
        case int():
            return struct.pack("b", value) if -32 <= value < 128 else struct.pack(">Bq", 0xD3, value)
        case float():
            return struct.pack(">Bd", 0xCB, value)
        case str():
            return struct.pack(">BH", 0xDA, len(value.encode())) + value.encode()
        case bytes():
            return bytes([0xC4, len(value)]) + value
        case list():
            return struct.pack(">BH", 0xDC, len(value)) + b"".join(map(pack, value))
        case dict():
            return bytes([0x80 + len(value)]) + b"".join(pack(part) for pair in value.items() for part in pair)
    raise TypeError(value)


VALUES = [
    None, True, 0, 127, 128, -1, -33, 1 << 40, 0.0, -1.5, "", "abc", "é" * 40, b"", b"\xff", [], [1, [2, ["x"]]], {"k": {"l": [1]}},
]  # fmt: skip
RULES: list[list[object]] = [
    ["a", "eq", 1], ["s", "eq", "abc"], ["a", "in", [1, "x", None]], ["s", "in", ["abc", b"abc"]],
    ["s", "glob", "a*[!x-z]?"], ["s", "re", "(?i)A.C|x{2,3}"], ["a", "any", None], [".id", "glob", "m*"],
    [".ts", "in", [1700000000000000000]], ["msg", "eq", b"abc"], ["msg", "re", "[a-c]+"], ["", "cel", "a == 1 && s == text"],
]  # fmt: skip
EXPRESSIONS = [
    "a == 1 && s.startsWith('a') || !(b < 2.5)", "size(fields) > 2 ? has(fields.m) : 'k' in m", "l.exists(x, x == 1)",
    "l.all(x, type(x) == int)", "l.filter(x, x != null).size() == 2", "s.matches('^a.c$')",
    "time > timestamp('2020-01-01T00:00:00Z') - duration('1h')", "payload == b'abc'", "text + s == 'abcabc'", "topic.endsWith('b')",
    "{'a': 1}['a'] == a", "m.k == []", "-a < 0", "double(a) / b > 0.1", "int(b) % 2 == 0", "time.getHours('Europe/Berlin') == 1",
    "a in [1, 2u, 3.0]", "l.map(x, [x])[0][0] == 1", '"""raw""" == r"\\n" // note', "a.b.c.d == 1",
]  # fmt: skip


def fields_and_rules() -> dict[str, dict[str, bytes]]:
    """Seeds of those two targets."""
    fields = {f"value-{i}": pack({"a": value, "é": [value]}) for i, value in enumerate(VALUES)}
    fields |= {"none": b"", "empty": pack({}), "all": pack({f"n{i}": value for i, value in enumerate(VALUES[:15])})}
    rules = {"value": b"\x02value == 'abc'", "glob": b"\x03*a?[b-c]*", "regex": b"\x04(a|b)*c+?$"}
    for i, some in enumerate([RULES, *([rule] for rule in RULES)]):
        raw = pack({"where": some, "extra": ["s"] if i % 2 else None})
        rules[f"rules-{i}"] = b"\0" + struct.pack("<H", len(raw)) + raw + pack({"a": 1, "s": "abc"})
    rules |= {f"expression-{i}": b"\x01" + text.encode() for i, text in enumerate(EXPRESSIONS)}
    return {"fields": fields, "rules": rules}


def record(number: int, topic: bytes, fields: bytes, payload: bytes) -> bytes:
    """One of the stored log, with a checksum that is wrong."""
    size = 76 + len(topic) + 2 + len(fields) + len(payload)
    words = (number, 1, 10, 9, 7, number, 0, 0)
    head = struct.pack("<IIQQqqQQqqIHBB", size, 0, *words, len(fields), len(topic), 2, bool(fields))
    return head + topic + b"me" + fields + payload


def log() -> dict[str, dict[str, bytes]]:
    """Seeds of the record and the index."""
    some = [
        record(0, b"a/b", b"", b"abc"),
        record(1, b"", pack({"a": 1}), b""),
        record(2, "é".encode(), b"", bytes(200)),
    ]
    words = (0, 0, 3, 400, 3, 1, 9, 12, 0)
    head = struct.pack("<QQQQQqqqQ", *words) + bytes(8)
    marks, waiting = struct.pack("<QQQq", 1, 0, 0, 1), struct.pack("<QqQQQ", 1, 12, 2, 7, 3)
    once = struct.pack("<QQQqQQQQ", 1, 7, 0, 9, 1, 0, 0, 3)
    topics = struct.pack("<QQQQQQ", 1, 3, 1, 3, 0, 3) + b"a/b"
    return {
        "record": {"one": some[0], "all": b"".join(some), "bad": b"x" + some[0]},
        "index": {"one": head + marks + waiting + once + topics, "empty": head + bytes(32)},
    }


def main(folder: Path) -> None:
    frames = {name: (way, bytes.fromhex(data)) for name, way, data, _ in rows("Vectors of frames")}
    seeds: dict[str, dict[str, bytes]] = {
        name: {} for name in ("engine_feed", "link_feed", "session_feed", "topics", "patterns")
    }
    clients = {"alice": 0, "bob": 1}
    script = b""
    for who, way, names, _ in rows("An exchange"):
        for name in names.split():
            if way == "→" and not name.startswith("hello"):
                script += step(clients[who], FRAME, frames[name][1][4:])
    seeds["engine_feed"]["exchange"] = script
    for name, (way, data) in frames.items():
        seeds["engine_feed" if way == "→" else "session_feed"][name] = (
            step(3 if name.startswith("hello") else 2, FEED, data) if way == "→" else b"\x05\x20" + data
        )
    # Client 0 subscribes and serves, 1 is the other node.
    links = b"".join(step(0, FRAME, frames[name][1][4:]) for name in ("subscribe", "serve", "subscribe-all"))
    for name, way, data, _ in rows("Vectors of links"):
        if way == "→" and name != "hello-node":
            links += step(1, FRAME, bytes.fromhex(data)[4:])
            seeds["link_feed"][name] = links
    seeds["link_feed"]["exchange"] = links + script
    stored = b"".join(
        step(1, FRAME, frames[name][1][4:])
        for name in ("topic-eth", "publish-durable", "publish-durable", "publish-times")
    )
    read = step(0, FRAME, frames["subscribe-since"][1][4:]) + step(0, READ, b"\xff")
    seeds["engine_feed"]["stored"] = stored + read + stored + step(0, FULL, b"\x01") + stored + step(0, COMMIT, b"")
    seeds["engine_feed"]["behind"] = read + step(0, WRITABLE, b"") + 9 * stored + step(0, WRITABLE, b"") + 9 * read
    for name, when, data, *_ in rows("Refused"):
        raw = bytes.fromhex(data)
        seeds["engine_feed"][f"refused-{name}"] = step(2 if when == "after" else 3, FEED, raw)
        seeds["session_feed"][f"refused-{name}"] = b"\x05\x20" + raw
    received = b"".join(data for way, data in frames.values() if way == "←")
    seeds["session_feed"]["everything"] = b"\x05\x20" + received
    topics = json.loads((ROOT / "tests" / "vectors" / "topics.json").read_text(encoding="utf-8"))
    for index, case in enumerate(topics["cases"]):
        seeds["topics"][f"case-{index}"] = f"{case['subscribe']}\n{case['publish']}".encode()
        expression = case["subscribe"].replace("**", ".*").replace("/*", "/[^/]+")
        seeds["patterns"][f"case-{index}"] = f"{expression}\n{case['publish']}".encode()
    seeds |= fields_and_rules() | log()
    for target, files in seeds.items():
        (folder / target).mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (folder / target / name).write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
