"""Parsers and formatters of command line values: durations, sizes, addresses, formats. Used by flags; no I/O."""

import re
from collections.abc import Callable
from datetime import datetime
from fractions import Fraction

from busway.cli.common.advice import hint
from busway.cli.common.field_flags import shown
from busway.common import durations
from busway.message import Message
from busway.positions import Position, encode_since
from busway.streams import check_name
from busway.topic import check_pattern, check_topic

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[kmg])?(?:i?b)?", re.IGNORECASE)
_BYTES = {None: 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_COUNTS = {None: 1, "k": 10**3, "m": 10**6, "g": 10**9}
_FIELD = re.compile(r"\{(\w+)\}")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SCHEMES = ("unix", "tcp", "tls", "memory")


def duration(text: str | float) -> float:
    """Parse `10s`, `1h30m`, `7d` or `250ms` as seconds. A number without a unit is seconds."""
    if not isinstance(text, str):
        return text  # a flag's default
    try:
        return durations.duration("", with_unit(text))
    except ValueError:
        raise ValueError(f"{text!r} is not a length of time: write 250ms, 10s, 5m, 1h30m or 7d") from None


def with_unit(text: str) -> str:
    """Add the unit s to a duration that is a bare number."""
    text = text.strip()
    return f"{text}s" if _NUMBER.fullmatch(text) else text


def size(text: str | int) -> int:
    """Parse `128`, `64k`, `1m` or `2g` as bytes; k is 1024."""
    return int(_scaled(text, _BYTES, "a size: write 128, 64k, 1m or 2g"))


def count(text: str | int) -> int:
    """Parse a count of at least 1: `100`, `50k`, `1m`; k is 1000."""
    wanted = "a whole number of 1 or more: write 100, 50k or 1m"
    number = _scaled(text, _COUNTS, wanted)
    if number < 1 or number.denominator != 1:
        raise ValueError(f"{text!r} is not {wanted}")
    return int(number)


def _scaled(text: str | int, units: dict[str | None, int], wanted: str) -> Fraction:
    if not isinstance(text, str):
        return Fraction(text)  # a flag's default
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not {wanted}")
    return Fraction(found["number"]) * units[found["unit"] and found["unit"].lower()]


def topic(text: str) -> str:
    """Check a topic before anything is sent."""
    return _checked(check_topic, text)


def pattern(text: str) -> str:
    """Check a topic, a pattern with `*` or `**`, or `re:` and a regular expression, before anything is sent."""
    return _checked(check_pattern, text)


def _checked(check: Callable[[str], object], text: str) -> str:
    """Return the text if it passes the check. The error has the hint for a topic of another system."""
    try:
        check(text)
    except ValueError as error:
        told = " ".join(str(error).split())
        found = hint(text)
        raise ValueError(told if found is None else f"{told}; {found}") from None
    return text


def topic_template(text: str) -> str:
    """Check a topic with placeholders in braces."""
    check_topic(_FIELD.sub("x", text))
    return text


def stream_name(text: str) -> str:
    return check_name("stream", text)


def channel_name(text: str) -> str:
    return check_name("channel", text)


def position(text: str) -> int | datetime | str:
    """Parse a position in a stream: an offset, a time, or text that the library parses (all, 1h, a position)."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return int(text)
    return since(text)


def stream_position(text: str) -> "int | datetime | str | Position":
    """Parse a position in one stream: an offset, a time, a position, or a duration back."""
    found = position(text)
    return Position.parse(found) if isinstance(found, str) and ":" in found else found


def since(text: str) -> datetime | str:
    """Parse the start of stored messages. A time without a zone is local time."""
    text = text.strip()
    if _DATE.match(text):
        try:
            return datetime.fromisoformat(text).astimezone()
        except ValueError:
            raise ValueError(
                f"{text!r} is not a time: write 2026-01-31, 2026-01-31T12:00 or 2026-01-31T12:00Z"
            ) from None
    try:
        encode_since(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a position: write all, a duration back (1h), a time (2026-01-31T12:00) or a position"
        ) from None
    return text


def shown_size(number: int) -> str:
    """Format bytes in the largest unit: 62.1m; k is 1024."""
    for unit, factor in (("g", 1024**3), ("m", 1024**2), ("k", 1024)):
        if number >= factor:
            return f"{number / factor:.1f}{unit}"
    return str(number)


def shown_duration(seconds: float | None) -> str:
    """Format a duration in its largest whole unit: 7d, 90s; None is `for ever`."""
    if seconds is None:
        return "for ever"
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def listen_address(scheme: str, text: str) -> str:
    """Return the address for a value of --unix, --tcp or --tls. A complete address is returned unchanged."""
    if text.startswith((f"{scheme}:", "unix:", "tcp://", "tls://")):
        return text
    _check_scheme(text)
    return f"unix:{text}" if scheme == "unix" else f"{scheme}://{text}"


def connect_address(text: str) -> str:
    """Return the address to connect to. Without a scheme `host:port` is TCP, and a path is a Unix socket."""
    if text.partition(":")[0] in _SCHEMES and ":" in text:
        return text
    _check_scheme(text)
    if "/" not in text and re.search(r":\d+$", text):
        return f"tcp://{text}"
    return f"unix:{text}"


def _check_scheme(text: str) -> None:
    """Raise ValueError for an unknown scheme, which must not be read as a path."""
    found = _SCHEME.match(text)
    if found is not None and found[1] not in _SCHEMES:
        raise ValueError(f"{text!r} has an unknown scheme: write unix:PATH, tcp://HOST:PORT or tls://HOST:PORT")


def readable(payload: bytes) -> str:
    """Format a payload as UTF-8 text without its last newline. Other bytes and control characters are escaped."""
    text = payload.removesuffix(b"\n").decode("utf-8", "backslashreplace")
    return text if text.isprintable() else "".join(c if c.isprintable() or c in "\n\t" else _escape(c) for c in text)


def one_line(text: str) -> str:
    """Escape newlines, tabs and control characters, so that the text stays on one line."""
    text = text.replace("\n", "\\n").replace("\t", "\\t")
    return text if text.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


class Format:
    r"""A --format text such as `{time} {topic} {payload}`. `\n` and `\t` are a newline and a tab; other braces stay."""

    FIELDS = (
        *("topic", "payload", "fields", "id", "time", "sender", "kind", "missed", "size", "number"),
        *("position", "stream", "offset", "sequence", "deliveries"),
    )

    def __init__(self, text: str) -> None:
        for name in _FIELD.findall(text):
            if name not in self.FIELDS:
                known = " ".join(f"{{{field}}}" for field in self.FIELDS)
                raise ValueError(f"{{{name}}} is not a field of --format: choose among {known}")
        self._text = text.replace("\\n", "\n").replace("\\t", "\t")

    def line(self, message: Message, number: int) -> str:
        """Return the line of a message. `number` counts printed messages from 1."""
        return _FIELD.sub(lambda found: self._value(found[1], message, number), self._text)

    @staticmethod
    def _value(name: str, message: Message, number: int) -> str:
        if name == "payload":
            return readable(message.payload)
        if name == "fields":
            return shown(message.fields)
        if name == "size":
            return str(len(message.payload))
        if name == "number":
            return str(number)
        if name == "time":
            return message.time.isoformat()
        value = getattr(message, name)
        return "" if value is None else str(value)
