"""Signatures of JSON requests: the text that is signed, and whether a signature is right.

Pure functions. A request is flat, or has its control fields in a member `headers`; `apiKey` and `signature` are where the
control fields are. Signed is the whole request with `apiKey` and without `signature`, as compact JSON with sorted keys; bytes,
which JSON has not, are in base64.
"""

import base64
import hmac
import json
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final, Literal, TypeAlias

Form: TypeAlias = Literal["flat", "headers"]

_DEEPEST: Final = 200
"""Members within members; requests that go deeper are no requests."""
_LONE: Final = re.compile("[\ud800-\udfff]")
"""Half a pair of surrogates, which UTF-8 can't say. JavaScript writes it as an escape."""


class _Number(str):
    """A number as the client wrote it."""

    __slots__ = ()


def form_of(request: Mapping[str, Any]) -> Form:
    return "headers" if isinstance(request.get("headers"), Mapping) else "flat"


def control(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where the control fields of a request are, `apiKey` and `signature` among them."""
    headers = request.get("headers")
    return headers if isinstance(headers, Mapping) else request


def signed_text(request: Mapping[str, Any], api_key: str | None = None, *, raw: bytes | str | None = None) -> bytes:
    """The text of a request that is signed; `api_key` if the request has none yet.

    Programs write numbers in many ways (`1e-7`, `1E-07`), and sign them as they send them: `raw` is the request as it came.
    ValueError if it can't be signed.
    """
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
    parts: list[str] = []
    _write(held, parts, _DEEPEST)
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
    """Whether the signature of a request is right, in either case of its digits. It takes as long if it isn't."""
    given = control(request).get("signature")
    if not isinstance(given, str):
        return False
    try:
        wanted = hmac.digest(secret.encode(), signed_text(request, raw=raw), sha256).hex()
    except ValueError:
        return False
    return hmac.compare_digest(given.lower().encode("utf-8", "replace"), wanted.encode())


def _write(value: Any, parts: list[str], depth: int) -> None:
    if depth == 0:
        raise ValueError("the request is nested too deeply")
    if isinstance(value, _Number):
        parts.append(value)
    elif isinstance(value, Mapping):
        before = "{"
        for name in sorted((name for name, one in value.items() if one is not None), key=_order):
            parts.append(before)
            _text(name, parts)
            parts.append(":")
            _write(value[name], parts, depth - 1)
            before = ","
        parts.append("{}" if before == "{" else "}")
    elif isinstance(value, list | tuple):
        parts.append("[")
        for number, one in enumerate(value):
            if number:
                parts.append(",")
            _write(one, parts, depth - 1)
        parts.append("]")
    elif isinstance(value, str):
        _text(value, parts)
    elif isinstance(value, bytes):
        parts.append(f'"{base64.b64encode(value).decode()}"')
    elif value is None or isinstance(value, bool | int | float):
        parts.append(json.dumps(value, allow_nan=False))
    else:
        raise ValueError(f"{type(value).__name__} is nothing that JSON has")


def _order(name: str) -> bytes:
    """Java and JavaScript compare units of UTF-16."""
    return name.encode("utf-16-be", "surrogatepass")


def _text(text: str, parts: list[str]) -> None:
    parts.append(_LONE.sub(lambda lone: f"\\u{ord(lone[0]):04x}", json.dumps(text, ensure_ascii=False)))
