"""Advice for errors of the command line: names the flag or command that corrects them. Called by terminal.fail()."""

import re
import ssl
from collections.abc import Callable
from typing import Final

from busway import errors

_WRONG_NAME: Final = {62, 64}
"""OpenSSL's error numbers for a certificate of another host or address."""
_UNKNOWN_ISSUER: Final = {18, 19, 20, 21}
"""OpenSSL's error numbers for a certificate whose issuer is not trusted."""


def advice(error: BaseException, *, timed: bool = False) -> str:
    """Return how to correct the error, or an empty text. `timed`: the verb has --timeout."""
    match error:
        case errors.ConnectFailed():
            return _connecting(error)
        case errors.ListenFailed() if "in use" in str(error):
            return "choose another address, or port 0 for any free one"
        case errors.ListenFailed() if flags := _wrong_files(error):
            return f"check {flags}"
        case errors.NoConsumers():
            return "start a subscriber with 'busway sub', or retry later"
        case errors.NoResponders():
            return "start a service with 'busway reply', or check the topic"
        case errors.Timeout() if timed:
            return "give more time with --timeout"
        case errors.ServiceTaken():
            return "only one service per topic: stop the other one ('busway info' lists the clients)"
        case errors.Forbidden(code=errors.Code.RESERVED):
            return "choose another topic"
        case errors.Forbidden():
            return "check --credentials and the topic"
        case errors.Rejected(code=errors.Code.NO_STREAM):
            return "'busway stream list' shows the streams"
        case errors.Rejected(code=errors.Code.NO_CHANNEL):
            return "'busway channel list' shows the channels; 'busway channel create' or 'busway take --create' creates one"
        case errors.StoreFailed(code=errors.Code.NO_SPACE):
            return "free space on the broker's disk, or start it with a lower --min-free-disk"
        case errors.LimitExceeded():
            return "'busway info' shows the broker's limits; 'busway serve' has a flag for each"
        case _:
            return ""


def _connecting(error: errors.ConnectFailed) -> str:
    text = str(error)
    if flags := _wrong_files(error):
        return f"check {flags}"
    for cause in _causes(error):
        match cause:
            case ssl.SSLCertVerificationError() if cause.verify_code in _WRONG_NAME:
                return "write a host name of the certificate into --url, or give one with --server-name"
            case ssl.SSLCertVerificationError() if cause.verify_code in _UNKNOWN_ISSUER:
                return "give the authority that signed the server's certificate with --ca"
            case ssl.SSLCertVerificationError():
                return "the server needs another certificate"
            case ssl.SSLError(reason="WRONG_VERSION_NUMBER"):
                return "write tcp:// instead of tls://, or give another address with --url"
            case ssl.SSLError() if "alert" in text or "ALERT" in str(cause):
                return _CLIENT_CERT
    if "instead of tcp://" in text:
        return "or give another address with --url"
    if "closed by the other side" in text or "connection was lost" in text:
        return _CLIENT_CERT
    return "is a server running there? start one with 'busway serve', or give another address with --url or BUSWAY_URL"


_CLIENT_CERT: Final = (
    "if the server requires a client certificate, give one that its authority signed with --cert and --key"
)


def _wrong_files(error: errors.BusError) -> str:
    """Return the flags of the bad files. The transport names them in its error as the fields of busway.TLS."""
    found = {"(cert, key)": "--cert and --key", "(cert)": "--cert", "(key)": "--key", "(ca)": "--ca"}
    return next((flags for words, flags in found.items() if f"{words}:" in str(error)), "")


def _causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None:
        found.append(error)
        error = error.__cause__
    return found


_WORD: Final = r"[\w*+-]+"
_DOTTED: Final = re.compile(rf"{_WORD}(\.{_WORD})+(\.[>#])?|{_WORD}\.[>#]|[>#]")
_SEGMENT: Final = {"+": "*", ">": "**", "#": "**"}


def hint(topic: str) -> str | None:
    """Return a hint for a topic or pattern of NATS (`a.*.>`), AMQP (`a.*.#`) or MQTT (`a/+/#`), else None."""
    if topic.startswith("re:"):
        return None
    dotted = "/" not in topic and _DOTTED.fullmatch(topic) is not None
    parts = topic.split("." if dotted else "/")
    foreign = not {*parts}.isdisjoint(_SEGMENT)
    if not foreign and not (dotted and ("*" in parts or len(parts) > 2)):
        return None  # probably the name of a file or a host, such as app.log
    ours = "/".join(_SEGMENT.get(part, part) for part in parts)
    return f"topics are paths such as a/b, and wildcards are * and **: did you mean {ours!r} instead of {topic!r}?"


def print_hints(note: Callable[[str], None], *topics: str) -> None:
    """Print the hints for these topics, if there are any."""
    for topic in topics:
        if (text := hint(topic)) is not None:
            note(text)
