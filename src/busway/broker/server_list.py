"""The list of servers that clients get in the WELCOME and whenever it changes (docs/protocol.md, "Servers").

The cluster reports changes of the nodes to it, and admission asks it for a WELCOME.
"""

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from busway.broker.peers import Members
    from busway.broker.runtime import Runtime

MOST: Final = 64
"""The most servers in the list. A client needs some that are up, not all."""
_CALM: Final = 0.05
"""Seconds in which changes are collected, because every client gets each new list."""


class ServerList:
    """The server list of one broker."""

    def __init__(self, runtime: "Runtime", members: "Members") -> None:
        self._runtime = runtime
        self._members = members
        self._timer: asyncio.TimerHandle | None = None
        self._sent: list[list[str]] = []
        """The list that was sent last to all clients."""
        self._mixed = False
        """Whether some client got another list in its WELCOME."""
        self._leaving = False
        self._apart = False

    def welcome(self) -> list[list[str]]:
        """The list for the WELCOME of a new client."""
        now = self.listing()
        self._mixed |= now != self._sent
        return now

    def listing(self) -> list[list[str]]:
        """The name and the addresses of each server, this one first. Empty if there is no other server."""
        runtime = self._runtime
        nodes = self._members.servers() or [[runtime.name, *runtime.addresses]]
        others = [*nodes[1:], *(["", address] for address in runtime.settings.servers)]
        own = [] if self._leaving else nodes[:1]
        return [*own, *others][:MOST] if others else []

    def changed(self) -> None:
        """The nodes of the cluster have changed: send the list soon."""
        if self._timer is None and not self._leaving:
            self._timer = self._runtime.loop.call_later(_CALM, self._send)

    def apart(self) -> None:
        """A lost link is back: report to clients that messages published at the other node meanwhile are missing."""
        self._apart = True
        self.changed()

    def leave(self) -> None:
        """This server stops: send the other servers to the clients for the last time."""
        self._leaving = True
        self.stop()
        if others := self.listing():
            self._runtime.engine.send_servers(msgspec.msgpack.encode(others), self._apart)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send(self) -> None:
        self._timer = None
        if (now := self.listing()) != self._sent or self._mixed or self._apart:
            apart, self._apart = self._apart, False
            self._sent, self._mixed = now, False
            self._runtime.engine.send_servers(msgspec.msgpack.encode(now), apart)
            self._runtime.flush()
