"""What to do about an error, in the words of the command line: the flag or the command that mends it."""

import re
import ssl
from collections.abc import Callable
from typing import Final

from busway import errors

_OTHER_NAME: Final = {62, 64}
"""OpenSSL's numbers for a certificate of another host or address."""
_UNKNOWN_ISSUER: Final = {18, 19, 20, 21}
"""And for one whose issuer is not trusted."""


def advice(error: BaseException, *, timed: bool = False) -> str:
    """What to do about it, where there is something; `timed`: the verb has --timeout."""
    match error:
        case errors.ConnectFailed():
            return _connecting(error)
        case errors.ListenFailed() if "in use" in str(error):
            return "choose another address, or port 0 for any free one"
        case errors.ListenFailed() if flags := _wrong_files(error):
            return f"check {flags}"
        case errors.NoConsumers():
            return "start a consumer with 'busway sub', or try again later"
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
            return "'busway stream list' shows what there is"
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
            case ssl.SSLCertVerificationError() if cause.verify_code in _OTHER_NAME:
                return "write a name that the certificate has into --url, or give it with --server-name"
            case ssl.SSLCertVerificationError() if cause.verify_code in _UNKNOWN_ISSUER:
                return "name the authority that signed the server's certificate with --ca"
            case ssl.SSLCertVerificationError():
                return "the server needs another certificate"
            case ssl.SSLError(reason="WRONG_VERSION_NUMBER"):
                return "write tcp:// instead of tls://, or name another with --url"
            case ssl.SSLError() if "alert" in text or "ALERT" in str(cause):
                return _SHOW
    if "closed by the other side" in text or "connection was lost" in text:
        if "tls://" in text:
            return _SHOW
        return "what listens there may want TLS: write tls:// instead of tcp://, or name another with --url"
    return "is a server running there? start one with 'busway serve', or name another with --url or BUSWAY_URL"


_SHOW: Final = "if the server asks for a client's certificate, show one that its authority signed with --cert and --key"


def _wrong_files(error: errors.BusError) -> str:
    """The flags of the files that the transport found to be wrong; it names them as the fields of busway.TLS."""
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
    """What to say of a topic or pattern of NATS (`a.*.>`), AMQP (`a.*.#`) or MQTT (`a/+/#`). None if it may be one of Busway."""
    if topic.startswith("re:"):
        return None
    dotted = "/" not in topic and _DOTTED.fullmatch(topic) is not None
    parts = topic.split("." if dotted else "/")
    foreign = not {*parts}.isdisjoint(_SEGMENT)
    if not foreign and not (dotted and ("*" in parts or len(parts) > 2)):
        return None  # such as app.log, a name of a file or a host
    ours = "/".join(_SEGMENT.get(part, part) for part in parts)
    return f"topics are paths such as a/b, and wildcards are * and **: did you mean {ours!r} instead of {topic!r}?"


def tell(note: Callable[[str], None], *topics: str) -> None:
    """Print the hints for these, if there are any."""
    for topic in topics:
        if (text := hint(topic)) is not None:
            note(text)
