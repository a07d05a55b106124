"""Encodes the frames CHANNEL and UNCHANNEL, by which a consumer joins and leaves a channel. `Channel` makes the registrar."""

from typing import Any, Final

import msgspec

from busway.client.connection.core import Core

_CHANNEL: Final = 0x30
_UNCHANNEL: Final = 0x31


class ChannelRegistrar:
    """Encodes CHANNEL and UNCHANNEL for one channel."""

    noun = "channel"

    def __init__(self, core: Core, request: dict[str, Any]) -> None:
        self._core = core
        self._request = request
        """The map of the CHANNEL frame."""

    def announce(self, number: int, *, again: bool) -> int:
        # With `again` the broker keeps the settings that were changed since the first CHANNEL.
        request = {**self._request, "again": again}
        return self._core.session.channel(_CHANNEL, number, msgspec.msgpack.encode(request))

    def resize(self, number: int, window: int) -> int:
        """Change the window of a consumer that the broker knows."""
        request = {**self._request, "again": True, "create": False, "window": window}
        return self._core.session.channel(_CHANNEL, number, msgspec.msgpack.encode(request))

    def withdraw(self, number: int) -> int:
        return self._core.session.channel(_UNCHANNEL, number, b"")

    def forget(self, number: int) -> None:
        if self._core.subscriptions.pop(number, None) is not None:
            self._forget(number)

    def drop(self, number: int) -> None:
        if self._core.greeted:
            self.withdraw(number)
        self._forget(number)

    def _forget(self, number: int) -> None:
        self._core.session.forget(number)
        self._core.session.own(number, None)
