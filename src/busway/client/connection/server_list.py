"""Server list of one client: the addresses that the program gave, and the servers that its broker listed.

A pure state machine, used by the lifecycle; its caller passes the source of randomness. The broker's list is only a
hint: addresses that this client can't reach are left out, an address that is less secure than the current connection
is refused, and an address that did not answer is tried after all others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import zip_longest
from typing import Annotated, Final

import msgspec

from busway.transport import Address, parse

MOST: Final = 8
"""Most listed addresses that are tried in one attempt, so that each has a fair share of its time."""

Listing = Annotated[
    list[Annotated[list[Annotated[str, msgspec.Meta(max_length=1024)]], msgspec.Meta(min_length=1)]],
    msgspec.Meta(max_length=1000),
]
"""The list of servers from a broker: for each server its name, then its addresses."""

_LOCAL_SCHEMES: Final = {"memory", "unix"}


@dataclass(frozen=True, slots=True)
class Known:
    """A server that the broker listed, with those of its addresses that this client may use."""

    name: str
    addresses: tuple[str, ...]


class ServerList:
    """The servers of one client. Without `learn` it ignores the lists of brokers. `chance` returns a number below 1."""

    def __init__(self, given: Sequence[str], chance: Callable[[], float], *, learn: bool) -> None:
        for url in given:
            parse(url)  # raises for a wrong address where the program gave it
        self.servers: tuple[Known, ...] = ()
        self._given = list(given)
        self._chance = chance
        self._learn = learn
        self._failed: dict[str, None] = {}
        """Addresses that did not answer, the latest last."""
        self._refused: set[str] = set()

    def update(self, servers: Sequence[Sequence[str]], url: str) -> list[str]:
        """Take over the list of the broker at this address. Returns the new complaints about it."""
        if not self._learn:
            return []
        here = parse(url)
        known, complaints = [], list[str]()
        for name, *addresses in servers:
            usable = []
            for text in addresses:
                refusal = _refusal(text, here)
                if refusal is None:
                    usable.append(text)
                elif refusal and text not in self._refused:
                    self._refused.add(text)
                    complaints.append(refusal)
            known.append(Known(name, tuple(usable)))
        self.servers = tuple(known)
        current = {*self._given, *(url for server in known for url in server.addresses)}
        self._failed = {url: None for url in self._failed if url in current}
        return complaints

    def failed(self, url: str) -> None:
        """Record that no server answered at this address."""
        self._failed.pop(url, None)
        self._failed[url] = None

    def answered(self, url: str) -> None:
        """Record that a server answered at this address."""
        self._failed.pop(url, None)

    def is_learned(self, url: str) -> bool:
        """Whether this address comes from a broker and not from the program."""
        return url not in self._given

    def order(self, last: str, *, left: bool) -> list[str]:
        """Addresses to try, in order. `last` is the previous one; `left` if its server announced that it stops."""
        listed = self._shuffled()
        if left:
            fresh = [url for url in listed if url not in self._failed]
            urls = [*fresh, *(url for url in self._given if url != last), last, *listed]
        else:
            urls = [last, *self._given, *listed]
        return list(dict.fromkeys(filter(None, urls)))

    def fewer(self, urls: Sequence[str], times: int) -> list[str]:
        """A part of these addresses, the smaller the more `times` all failed, so that each has more of the time.

        Addresses that were never tried come first, then the one that failed longest ago.
        """
        tried = {url: index for index, url in enumerate(self._failed)}
        return sorted(urls, key=lambda url: tried.get(url, -1))[: max(-(-len(urls) // (times + 1)), 1)]

    def _shuffled(self) -> list[str]:
        """At most MOST listed addresses in random order, to spread the clients of a lost server; failed ones last."""
        servers = [server.addresses for server in self.servers if server.addresses]
        for end in range(len(servers) - 1, 0, -1):
            other = int(self._chance() * (end + 1))
            servers[end], servers[other] = servers[other], servers[end]
        found = [url for turn in zip_longest(*servers) for url in turn if url is not None]
        found.sort(key=lambda url: url in self._failed)
        return found[:MOST]


def _refusal(text: str, here: Address) -> str | None:
    """Why a client that is connected to `here` can't use an address; "" without a complaint, None if it can."""
    try:
        there = parse(text)
    except ValueError:
        return f"server address {text!r} from the broker is not valid: not used"
    if there.scheme == "memory":
        return ""
    if here.scheme == "tls" and there.scheme != "tls":
        return f"server address {text} from the broker is not encrypted, but the current connection is: not used"
    same_host = here.scheme in _LOCAL_SCHEMES or _is_loopback(here.host)
    if not same_host and (there.scheme == "unix" or _is_loopback(there.host)):
        return ""
    if there.scheme == "unix" and here.scheme not in _LOCAL_SCHEMES:
        return ""
    return None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
