"""Signatures of JSON requests: makes the signed text, signs requests and verifies signatures. Pure functions.

A request is flat, or has its control fields in a member `headers`; `apiKey` and `signature` are control fields. The
signed text is the whole request with `apiKey` and without `signature`, as compact JSON with sorted keys and with
bytes in base64. Released clients write that JSON in three ways, see `Writing`. `keys.py` verifies requests here;
programs sign them.
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
"""Largest depth of nested members in a request."""
_LONE: Final = re.compile("[\ud800-\udfff]")
"""Half a pair of surrogates, which UTF-8 can't encode. JavaScript writes it as an escape."""


class Writing(NamedTuple):
    """How a client writes the JSON that it signs."""

    nulls: bool
    """The text contains members that are null."""
    escaped: bool
    """The text escapes characters other than ASCII, and sorts keys by code point rather than by unit of UTF-16."""


JAVA: Final = Writing(nulls=False, escaped=False)
"""The way of the protocol and of the functions here that sign."""
JAVASCRIPT: Final = Writing(nulls=True, escaped=False)
PYTHON: Final = Writing(nulls=True, escaped=True)
WRITINGS: Final = (JAVA, JAVASCRIPT, PYTHON)


class _Number(str):
    """The text of a number as the client wrote it."""

    __slots__ = ()


def form_of(request: Mapping[str, Any]) -> Form:
    """The form of a request."""
    return "headers" if isinstance(request.get("headers"), Mapping) else "flat"


def control(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """The mapping that holds the control fields of a request, such as `apiKey` and `signature`."""
    headers = request.get("headers")
    return headers if isinstance(headers, Mapping) else request


def signed_text(
    request: Mapping[str, Any],
    api_key: str | None = None,
    *,
    raw: bytes | str | None = None,
    writing: Writing = JAVA,
) -> bytes:
    """The signed text of a request; give `api_key` if the request has none yet.

    Programs write numbers in many ways (`1e-7`, `1E-07`) and sign them as they send them. `raw` is the request as
    received, to keep its numbers. Raises ValueError if the request can't be signed.
    """
    return _text_of(_signed_part(request, api_key, raw), writing)


def _signed_part(request: Mapping[str, Any], api_key: str | None, raw: bytes | str | None) -> Mapping[str, Any]:
    """The signed part of a request."""
    try:
        whole = dict(request) if raw is None else json.loads(raw, parse_float=_Number, parse_int=_Number)
    except RecursionError as error:
        raise ValueError("the request is nested too deeply") from error
    if not isinstance(whole, dict):
        raise ValueError("a request must be a JSON object")  # noqa: TRY004 - the text is wrong, not a type
    signed_part = {name: value for name, value in control(whole).items() if name != "signature"}
    if api_key is not None:
        signed_part["apiKey"] = api_key
    if form_of(whole) == "headers":
        signed_part = {**whole, "headers": signed_part}
    return signed_part


def _text_of(signed_part: Mapping[str, Any], writing: Writing) -> bytes:
    parts: list[str] = []
    _write(signed_part, parts, _DEEPEST, writing)
    return "".join(parts).encode()


def sign(request: Mapping[str, Any], api_key: str, secret: str) -> str:
    """The signature of a request: upper case in the flat form, as specified, and lower case in the headers form."""
    digits = hmac.digest(secret.encode(), signed_text(request, api_key), sha256).hex()
    return digits if form_of(request) == "headers" else digits.upper()


def signed(request: Mapping[str, Any], api_key: str, secret: str) -> dict[str, Any]:
    """The request with its key and its signature."""
    members = {"apiKey": api_key, "signature": sign(request, api_key, secret)}
    if form_of(request) == "headers":
        return {**request, "headers": {**request["headers"], **members}}
    return {**request, **members}


def verify(request: Mapping[str, Any], secret: str, *, raw: bytes | str | None = None) -> bool:
    """Whether a request has a valid signature, in either letter case, of one of the texts that released clients sign.

    An invalid signature takes as long as a valid one, because the number of texts depends on the request alone.
    """
    signature = control(request).get("signature")
    if not isinstance(signature, str):
        return False
    digits = signature.lower().encode("utf-8", "replace")
    try:
        signed_part = _signed_part(request, None, raw)
        texts = {_text_of(signed_part, writing) for writing in WRITINGS}
    except ValueError:
        return False
    valid = False
    for text in texts:
        expected = hmac.digest(secret.encode(), text, sha256).hex()
        valid |= hmac.compare_digest(digits, expected.encode())
    return valid


def _write(value: Any, parts: list[str], depth: int, writing: Writing) -> None:
    if depth == 0:
        raise ValueError("the request is nested too deeply")
    if isinstance(value, _Number):
        parts.append(value)
    elif isinstance(value, Mapping):
        separator = "{"
        names = (name for name, member in value.items() if writing.nulls or member is not None)
        for name in sorted(names, key=None if writing.escaped else _order):
            parts.append(separator)
            _text(name, parts, writing)
            parts.append(":")
            _write(value[name], parts, depth - 1, writing)
            separator = ","
        parts.append("{}" if separator == "{" else "}")
    elif isinstance(value, list | tuple):
        parts.append("[")
        for number, element in enumerate(value):
            if number:
                parts.append(",")
            _write(element, parts, depth - 1, writing)
        parts.append("]")
    elif isinstance(value, str):
        _text(value, parts, writing)
    elif isinstance(value, bytes):
        parts.append(f'"{base64.b64encode(value).decode()}"')
    elif value is None or isinstance(value, bool | int | float):
        parts.append(json.dumps(value, allow_nan=False))
    else:
        raise ValueError(f"JSON has no value of the type {type(value).__name__}")


def _order(name: str) -> bytes:
    """Sort key of Java and JavaScript, which compare units of UTF-16."""
    return name.encode("utf-16-be", "surrogatepass")


def _text(text: str, parts: list[str], writing: Writing) -> None:
    if writing.escaped:
        parts.append(json.dumps(text))
    else:
        parts.append(_LONE.sub(lambda lone: f"\\u{ord(lone[0]):04x}", json.dumps(text, ensure_ascii=False)))
