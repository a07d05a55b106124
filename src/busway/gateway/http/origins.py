"""Host and origin checks of the JSON door: for which hosts it answers, and which web pages may call it. Values only.

A page can let the name of its own host resolve to this server (DNS rebinding). For the browser, its requests are then
of the same origin, so only the name in `Host` shows the attack. `Origins` checks that name in every request.
"""

from collections.abc import Mapping, Sequence
from ipaddress import ip_address

from busway.gateway.json.config import ALL, host_name


class Origins:
    """The hosts that the door answers for, and the origins of pages that may call it."""

    def __init__(self, bound: str, hosts: Sequence[str], cors: Sequence[str]) -> None:
        """`bound` is the host that the door listens on, `hosts` are its further names, `cors` are origins of pages."""
        self._bound = bound.lower()
        self._hosts = frozenset(host.lower() for host in hosts)
        self._cors = frozenset(cors)
        self._shared = frozenset(origin.partition("://")[2].lower() for origin in cors) - {""}
        self._local = bound == "localhost" or _is_loopback(bound)

    def misdirected(self, headers: Mapping[str, str]) -> str | None:
        """The text to refuse a request with if its Host names another server. Browsers always send a Host."""
        host = headers.get("Host", "").lower()
        if not host or ALL in self._hosts or ALL in self._cors or host in self._shared:
            return None
        name = host_name(host)
        if name is not None and self._answers(name):
            return None
        shown = name or host
        return (
            f"this server does not answer for the host {shown!r}: "
            f"if that is its name, start it with --http-host {shown}"
        )

    def _answers(self, name: str) -> bool:
        if name in {"localhost", self._bound} or name.endswith(".localhost") or name in self._hosts:
            return True
        try:
            address = ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self._local  # a page can't redirect an IP address

    def foreign(self, headers: Mapping[str, str]) -> bool:
        """Whether the browser reports that the request comes from a page of an origin that may not call the door."""
        origin = headers.get("Origin")
        if origin is not None:
            return not self.shares(origin) and not _same(origin, headers)
        return headers.get("Sec-Fetch-Site", "none") not in {"none", "same-origin"} and not self.shares(None)

    def unproven(self, headers: Mapping[str, str], *, changes: bool) -> bool:
        """Whether a GET or HEAD may come from a page of another site although the browser does not report it.

        Browsers send neither Origin nor Sec-Fetch-Site with a GET to a plain HTTP address other than localhost. A
        Referer of another site shows such a page. Without a Referer, the door refuses a browser's request that
        `changes` state.
        """
        if "Origin" in headers or "Sec-Fetch-Site" in headers:
            return False  # foreign() decides
        if referer := headers.get("Referer"):
            scheme, _, rest = referer.partition("://")
            origin = f"{scheme}://{rest.partition('/')[0]}"
            return not self.shares(origin) and not _same(origin, headers)
        return changes and headers.get("User-Agent", "").startswith("Mozilla/") and not self.shares(None)

    def shares(self, origin: str | None) -> bool:
        """Whether pages of an origin may call the door and read its answers."""
        return ALL in self._cors or (origin is not None and origin in self._cors)


def _same(origin: str, headers: Mapping[str, str]) -> bool:
    return origin.partition("://")[2].lower() == headers.get("Host", "").lower()


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
