"""Which hosts the JSON door answers for, and whether a page of another site sends a request. Values only.

A page can have the name of its own host point at this server (DNS rebinding). Its requests are then of the same origin for
the browser, so the name in `Host` is the only sign. That name is checked in every request.
"""

from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

ALL: Final = "*"


class Origins:
    """The hosts and the pages that a door answers."""

    def __init__(self, bound: str, hosts: Sequence[str], cors: Sequence[str]) -> None:
        """`bound` is the host that the door listens on, `hosts` are further names of it, `cors` are origins of pages."""
        self._bound = bound.lower()
        self._hosts = frozenset(one.lower() for one in hosts)
        self._cors = frozenset(cors)
        self._shared = frozenset(one.partition("://")[2].lower() for one in cors) - {""}
        self._local = bound == "localhost" or _is_loopback(bound)

    def misdirected(self, headers: Mapping[str, str]) -> str | None:
        """Why a request is not for this server: its Host names another one. A request without Host is no browser's."""
        host = headers.get("Host", "").lower()
        if not host or ALL in self._hosts or ALL in self._cors or host in self._shared:
            return None
        name = _name(host)
        if name is not None and self._answers(name):
            return None
        shown = name or host
        return f"this server does not answer for the host {shown!r}: start it with --http-host {shown} if that is a name of it"

    def _answers(self, name: str) -> bool:
        if name in {"localhost", self._bound} or name.endswith(".localhost") or name in self._hosts:
            return True
        try:
            address = ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self._local  # a page can't change where an address leads

    def foreign(self, headers: Mapping[str, str]) -> bool:
        """Whether the browser says that a page of another site, which is not shared with, sends a request."""
        origin = headers.get("Origin")
        if origin is not None:
            return not self.shares(origin) and not _same(origin, headers)
        return headers.get("Sec-Fetch-Site", "none") not in {"none", "same-origin"} and not self.shares(None)

    def unproven(self, headers: Mapping[str, str], *, changes: bool) -> bool:
        """Whether a GET or HEAD may come from a page of another site although the browser does not say so.

        Browsers send neither Origin nor Sec-Fetch-Site with a GET to a plain HTTP address other than localhost. A Referer of
        another site is a sign of such a page. Without one, a browser may not send what `changes` anything.
        """
        if "Origin" in headers or "Sec-Fetch-Site" in headers:
            return False  # foreign() knows
        if referer := headers.get("Referer"):
            scheme, _, rest = referer.partition("://")
            origin = f"{scheme}://{rest.partition('/')[0]}"
            return not self.shares(origin) and not _same(origin, headers)
        return changes and headers.get("User-Agent", "").startswith("Mozilla/") and not self.shares(None)

    def shares(self, origin: str | None) -> bool:
        """Whether pages of an origin may call the door and read its answers."""
        return ALL in self._cors or (origin is not None and origin in self._cors)


def check_host(name: str) -> None:
    """Raises ValueError for what can't be the name of a host."""
    if name != ALL and _name(name) != name.lower():
        raise ValueError(
            f"{name!r} is no name of a host: write it without scheme and port, such as bus.example, or * for any"
        )


def _same(origin: str, headers: Mapping[str, str]) -> bool:
    return origin.partition("://")[2].lower() == headers.get("Host", "").lower()


def _name(host: str) -> str | None:
    """The name in a Host header, without port; None if there is none."""
    if set(host) & set("@/?#\\ "):
        return None
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".") or None
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
