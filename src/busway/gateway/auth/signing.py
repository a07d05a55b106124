"""Signatures of JSON requests: the text that is signed, and whether a signature is right.

Pure functions. A request is flat, or has its control fields in a member `headers`; `apiKey` and `signature` are where the
control fields are. The signed text is the whole request with `apiKey` and without `signature`, as compact JSON with sorted
keys; bytes, which JSON does not have, are in base64. Released clients write that JSON in three ways, see `Writing`.
"""

import base64
import hmac
import json
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple, TypeAlias

Form: TypeAlias = Literal["flat", "headers"]

_DEEPEST: Final = 200
"""Members within members; requests that go deeper are no requests."""
_LONE: Final = re.compile("[\ud800-\udfff]")
"""Half a pair of surrogates, which UTF-8 can't say. JavaScript writes it as an escape."""


class Writing(NamedTuple):
    """How a client writes the JSON that it signs."""

    nulls: bool
    """Members that are null are part of the text."""
    escaped: bool
    """Characters other than ASCII are escaped, and keys are sorted by code point rather than by unit of UTF-16."""


JAVA: Final = Writing(nulls=False, escaped=False)
"""As the protocol says, and as this door signs."""
JAVASCRIPT: Final = Writing(nulls=True, escaped=False)
PYTHON: Final = Writing(nulls=True, escaped=True)
WRITINGS: Final = (JAVA, JAVASCRIPT, PYTHON)


class _Number(str):
    """A number as the client wrote it."""

    __slots__ = ()


def form_of(request: Mapping[str, Any]) -> Form:
    return "headers" if isinstance(request.get("headers"), Mapping) else "flat"


def control(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where the control fields of a request are, `apiKey` and `signature` among them."""
    headers = request.get("headers")
    return headers if isinstance(headers, Mapping) else request


def signed_text(
    request: Mapping[str, Any],
    api_key: str | None = None,
    *,
    raw: bytes | str | None = None,
    writing: Writing = JAVA,
) -> bytes:
    """The text of a request that is signed; `api_key` if the request has none yet.

    Programs write numbers in many ways (`1e-7`, `1E-07`), and sign them as they send them: `raw` is the request as it came.
    ValueError if it can't be signed.
    """
    return _text_of(_held(request, api_key, raw), writing)


def _held(request: Mapping[str, Any], api_key: str | None, raw: bytes | str | None) -> Mapping[str, Any]:
    """The signed part of a request."""
    try:
        whole = dict(request) if raw is None else json.loads(raw, parse_float=_Number, parse_int=_Number)
    except RecursionError as error:
        raise ValueError("the request is nested too deeply") from error
    if not isinstance(whole, dict):
        raise ValueError("a request is a JSON object")  # noqa: TRY004 - it is the text's fault, not a caller's
    held = {name: value for name, value in control(whole).items() if name != "signature"}
    if api_key is not None:
        held["apiKey"] = api_key
    if form_of(whole) == "headers":
        held = {**whole, "headers": held}
    return held


def _text_of(held: Mapping[str, Any], writing: Writing) -> bytes:
    parts: list[str] = []
    _write(held, parts, _DEEPEST, writing)
    return "".join(parts).encode()


def sign(request: Mapping[str, Any], api_key: str, secret: str) -> str:
    """The signature: upper case in the flat form, as its document says, lower case in the other, as its clients send it."""
    digits = hmac.digest(secret.encode(), signed_text(request, api_key), sha256).hex()
    return digits if form_of(request) == "headers" else digits.upper()


def signed(request: Mapping[str, Any], api_key: str, secret: str) -> dict[str, Any]:
    """The request with its key and its signature."""
    said = {"apiKey": api_key, "signature": sign(request, api_key, secret)}
    if form_of(request) == "headers":
        return {**request, "headers": {**request["headers"], **said}}
    return {**request, **said}


def verify(request: Mapping[str, Any], secret: str, *, raw: bytes | str | None = None) -> bool:
    """Whether the signature of a request is right for one of the texts that released clients sign, in either case of its digits.

    A wrong signature takes as long as a right one: the number of texts depends on the request alone.
    """
    given = control(request).get("signature")
    if not isinstance(given, str):
        return False
    digits = given.lower().encode("utf-8", "replace")
    try:
        held = _held(request, None, raw)
        texts = {_text_of(held, writing) for writing in WRITINGS}
    except ValueError:
        return False
    right = False
    for text in texts:
        wanted = hmac.digest(secret.encode(), text, sha256).hex()
        right |= hmac.compare_digest(digits, wanted.encode())
    return right


def _write(value: Any, parts: list[str], depth: int, writing: Writing) -> None:
    if depth == 0:
        raise ValueError("the request is nested too deeply")
    if isinstance(value, _Number):
        parts.append(value)
    elif isinstance(value, Mapping):
        before = "{"
        names = (name for name, one in value.items() if writing.nulls or one is not None)
        for name in sorted(names, key=None if writing.escaped else _order):
            parts.append(before)
            _text(name, parts, writing)
            parts.append(":")
            _write(value[name], parts, depth - 1, writing)
            before = ","
        parts.append("{}" if before == "{" else "}")
    elif isinstance(value, list | tuple):
        parts.append("[")
        for number, one in enumerate(value):
            if number:
                parts.append(",")
            _write(one, parts, depth - 1, writing)
        parts.append("]")
    elif isinstance(value, str):
        _text(value, parts, writing)
    elif isinstance(value, bytes):
        parts.append(f'"{base64.b64encode(value).decode()}"')
    elif value is None or isinstance(value, bool | int | float):
        parts.append(json.dumps(value, allow_nan=False))
    else:
        raise ValueError(f"{type(value).__name__} is nothing that JSON has")


def _order(name: str) -> bytes:
    """Java and JavaScript compare units of UTF-16."""
    return name.encode("utf-16-be", "surrogatepass")


def _text(text: str, parts: list[str], writing: Writing) -> None:
    if writing.escaped:
        parts.append(json.dumps(text))
    else:
        parts.append(_LONE.sub(lambda lone: f"\\u{ord(lone[0]):04x}", json.dumps(text, ensure_ascii=False)))
