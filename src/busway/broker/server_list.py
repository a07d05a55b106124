"""The servers that clients are told of, at their WELCOME and whenever others are there: see "Servers" in docs/protocol.md."""

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from busway.broker.hub import Hub
    from busway.broker.peers import Members

MOST: Final = 64
"""Servers that a client is told of: it needs some that are there, not all."""
_CALM: Final = 0.05
"""Seconds in which changes are gathered, since each is told to every client."""


class ServerList:
    """Tells the clients of one hub."""

    def __init__(self, hub: "Hub", members: "Members") -> None:
        self._hub = hub
        self._members = members
        self._timer: asyncio.TimerHandle | None = None
        self._told: list[list[str]] = []
        self._mixed = False
        """Some client was told something else at its WELCOME."""
        self._leaving = False
        self._apart = False

    def welcome(self) -> list[list[str]]:
        """For a client that comes now."""
        now = self.listing()
        self._mixed |= now != self._told
        return now

    def listing(self) -> list[list[str]]:
        """Name and addresses of each server, this one first; none, if there is no other."""
        hub = self._hub
        nodes = self._members.servers() or [[hub.name, *hub.addresses]]
        others = [*nodes[1:], *(["", address] for address in hub.settings.servers)]
        own = [] if self._leaving else nodes[:1]
        return [*own, *others][:MOST] if others else []

    def changed(self) -> None:
        """Others are there, or some are gone."""
        if self._timer is None and not self._leaving:
            self._timer = self._hub.loop.call_later(_CALM, self._tell)

    def apart(self) -> None:
        """A link is back that was lost without a word: what was published meanwhile at the node behind it has not come."""
        self._apart = True
        self.changed()

    def leave(self) -> None:
        """This server stops: its clients hear of the others, for the last time."""
        self._leaving = True
        self.stop()
        if others := self.listing():
            self._hub.engine.tell_servers(msgspec.msgpack.encode(others), self._apart)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self) -> None:
        self._timer = None
        if (now := self.listing()) != self._told or self._mixed or self._apart:
            apart, self._apart = self._apart, False
            self._told, self._mixed = now, False
            self._hub.engine.tell_servers(msgspec.msgpack.encode(now), apart)
            self._hub.flush()
