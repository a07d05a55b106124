"""Where a client may go: the addresses it was given, and the servers that its broker told of.

A machine; chance is handed in. What a broker tells is taken for a hint: addresses that this client can't reach are left out, one that
is less safe than the present connection is refused, and one that did not answer is tried after all others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import zip_longest
from typing import Annotated, Final

import msgspec

from busway.transport import Address, parse

MOST: Final = 8
"""Addresses that were told which are tried in one attempt, so that each has a fair part of its time."""

Told = Annotated[
    list[Annotated[list[Annotated[str, msgspec.Meta(max_length=1024)]], msgspec.Meta(min_length=1)]],
    msgspec.Meta(max_length=1000),
]
"""What a broker tells: of each server its name, then its addresses."""

_HERE: Final = {"memory", "unix"}


@dataclass(frozen=True, slots=True)
class Known:
    """A server that the broker told of, with its addresses that this client may use."""

    name: str
    addresses: tuple[str, ...]


class ServerList:
    """The servers of one client."""

    def __init__(self, given: Sequence[str], chance: Callable[[], float], *, learn: bool) -> None:
        for url in given:
            parse(url)  # a wrong one is found here, where it was given
        self.servers: tuple[Known, ...] = ()
        self._given = list(given)
        self._chance = chance
        self._learn = learn
        self._silent: dict[str, None] = {}
        """Where nobody has answered, the last one last."""
        self._refused: set[str] = set()

    def told(self, servers: Sequence[Sequence[str]], url: str) -> list[str]:
        """What the broker at this address tells; those complaints about it that are new."""
        if not self._learn:
            return []
        here = parse(url)
        known, complaints = [], list[str]()
        for name, *addresses in servers:
            usable = []
            for text in addresses:
                why = _useless(text, here)
                if why is None:
                    usable.append(text)
                elif why and text not in self._refused:
                    self._refused.add(text)
                    complaints.append(why)
            known.append(Known(name, tuple(usable)))
        self.servers = tuple(known)
        there = {*self._given, *(url for one in known for url in one.addresses)}
        self._silent = {url: None for url in self._silent if url in there}
        return complaints

    def silent(self, url: str) -> None:
        """Nobody has answered there."""
        self._silent.pop(url, None)
        self._silent[url] = None

    def answered(self, url: str) -> None:
        self._silent.pop(url, None)

    def was_told(self, url: str) -> bool:
        """Whether only a broker has told of this address."""
        return url not in self._given

    def order(self, last: str, *, left: bool) -> list[str]:
        """Addresses to try, one after the other: `last` is that of last time; its server has `left` if it has said so."""
        told = self._shuffled()
        if left:
            fresh = [url for url in told if url not in self._silent]
            ways = [*fresh, *(url for url in self._given if url != last), last, *told]
        else:
            ways = [last, *self._given, *told]
        return list(dict.fromkeys(filter(None, ways)))

    def fewer(self, urls: Sequence[str], times: int) -> list[str]:
        """Of those to try, when all were tried for nothing so many times: the more often, the fewer at once, so that each has more time.

        Those come first that were not tried, or longest ago.
        """
        tried = {url: place for place, url in enumerate(self._silent)}
        return sorted(urls, key=lambda url: tried.get(url, -1))[: max(-(-len(urls) // (times + 1)), 1)]

    def _shuffled(self) -> list[str]:
        """Some of those that were told, by chance, so that the clients of a server that is gone spread; those that were silent last."""
        servers = [one.addresses for one in self.servers if one.addresses]
        for end in range(len(servers) - 1, 0, -1):
            other = int(self._chance() * (end + 1))
            servers[end], servers[other] = servers[other], servers[end]
        found = [url for turn in zip_longest(*servers) for url in turn if url is not None]
        found.sort(key=lambda url: url in self._silent)
        return found[:MOST]


def _useless(text: str, here: Address) -> str | None:
    """Why a client that is connected to `here` can't go to an address; "" if that is nothing to complain about."""
    try:
        there = parse(text)
    except ValueError:
        return f"the broker told of an address that is none: {text!r}"
    if there.scheme == "memory":
        return ""
    if here.scheme == "tls" and there.scheme != "tls":
        return f"the broker told of {text}, which is not encrypted as the present connection is: not used"
    near = here.scheme in _HERE or _is_loopback(here.host)
    if not near and (there.scheme == "unix" or _is_loopback(there.host)):
        return ""
    if there.scheme == "unix" and here.scheme not in _HERE:
        return ""
    return None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
