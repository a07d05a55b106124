"""Encodes the error of a handler for the requester: a text, and a code and details as fields of the reply.

The service and the typed service call it.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from busway.errors import InvalidFields, PayloadError
from busway.fields import encode_fields

log = logging.getLogger("busway.client")

_MOST: Final = 256
"""Most characters of a code."""


def described(code: int | str | None, details: Mapping[str, Any] | None, topic: str) -> bytes:
    """The encoded fields of an error. Values that fields can't hold are left out."""
    fields: dict[str, Any] = {}
    if isinstance(code, str) and code:
        fields["code"] = code[:_MOST]
    if not details:
        return _packed(fields, topic)
    try:
        return encode_fields(fields | {"details": msgspec.to_builtins(dict(details), str_keys=True, enc_hook=str)})
    except (InvalidFields, TypeError, ValueError, RecursionError) as error:
        log.warning("an error of the service %r is sent without its details, which fields can't hold: %s", topic, error)
        return _packed(fields, topic)


def _packed(fields: dict[str, Any], topic: str) -> bytes:
    try:
        return encode_fields(fields)
    except InvalidFields as error:
        log.warning("an error of the service %r is sent without its code: %s", topic, error)
        return b""


def explained(error: Exception) -> tuple[str, str, dict[str, Any] | None]:
    """Text, code and details of an exception of a handler. The code is the exception's type."""
    details = None
    if isinstance(error, PayloadError):
        details = {"topic": error.topic, "field": error.field, "reason": error.reason}
    return f"{type(error).__name__}: {error}", type(error).__name__, details
