"""Models of fields and rules that are too simple to be wrong, and MessagePack that is longer than it needs to be."""

import fnmatch
import math
import random
import re
import struct
from typing import Any

import msgspec

Rule = tuple[str, str, Any]


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


def holds(rule: Rule, fields: dict[str, Any], sender: str, time: int, payload: bytes) -> bool:
    name, op, argument = rule
    seen = {**fields, ".id": sender, ".ts": time, "msg": payload}
    if name not in seen:
        return False
    value = seen[name]
    if name == "msg":
        if op in {"eq", "in"}:
            raw = [
                item.encode() if isinstance(item, str) else item for item in (argument if op == "in" else [argument])
            ]
            return value in raw
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return op == "any"
    match op:
        case "eq":
            return same(value, argument)
        case "in":
            return same(value, argument) if isinstance(value, list) else any(same(value, item) for item in argument)
        case "glob":
            return isinstance(value, str) and fnmatch.fnmatchcase(value, argument)
        case "re":
            return isinstance(value, str) and re.fullmatch(argument, value) is not None
    return True


def all_hold(rules: list[Rule], extra: list[str] | None, fields: dict[str, Any], **message: Any) -> bool:
    known = {name for name, _, _ in rules}
    allowed = extra is None or all(name in known or name in extra for name in fields)
    return allowed and all(holds(rule, fields, **message) for rule in rules)


def wire(*rules: Any, **more: Any) -> bytes:
    """The rules of SUBSCRIBE."""
    return msgspec.msgpack.encode({"where": [list(rule) for rule in rules], **more})


def loose(value: Any, choose: random.Random) -> bytes:
    """MessagePack of a value in any of the forms it may have."""
    match value:
        case bool() | None:
            return msgspec.msgpack.encode(value)
        case int():
            forms = [
                "B" * (0 <= value < 256),
                "H" * (0 <= value < 1 << 16),
                "I" * (0 <= value < 1 << 32),
                "Q" * (value >= 0),
            ]
            forms += [
                letter * (-(1 << bits - 1) <= value < 1 << bits - 1)
                for letter, bits in zip("bhiq", (8, 16, 32, 64), strict=True)
            ]
            form = choose.choice([form for form in forms if form])
            return bytes(
                [
                    {
                        **dict(zip("BHIQ", range(0xCC, 0xD0), strict=True)),
                        **dict(zip("bhiq", range(0xD0, 0xD4), strict=True)),
                    }[form]
                ]
            ) + struct.pack(f">{form}", value)
        case float():
            if value == 0:
                value = choose.choice([0.0, -0.0])
            if struct.unpack(">f", struct.pack(">f", value))[0] == value and choose.random() < 0.5:
                return b"\xca" + struct.pack(">f", value)
            return b"\xcb" + struct.pack(">d", value)
        case str():
            return sized(value.encode(), (0xD9, 0xDA, 0xDB), choose)
        case bytes():
            return sized(value, (0xC4, 0xC5, 0xC6), choose)
        case list():
            return counted(len(value), (0xDC, 0xDD), choose) + b"".join(loose(item, choose) for item in value)
        case dict():
            pairs = list(value.items())
            choose.shuffle(pairs)
            return counted(len(pairs), (0xDE, 0xDF), choose) + b"".join(
                loose(part, choose) for pair in pairs for part in pair
            )
    raise TypeError(value)


def sized(raw: bytes, first: tuple[int, int, int], choose: random.Random) -> bytes:
    form = choose.choice([0, 1, 2] if len(raw) < 256 else [1, 2])
    return bytes([first[form]]) + struct.pack(">BHI"[0] + "BHI"[form], len(raw)) + raw


def counted(size: int, first: tuple[int, int], choose: random.Random) -> bytes:
    form = choose.choice([0, 1])
    return bytes([first[form]]) + struct.pack(">" + "HI"[form], size)
