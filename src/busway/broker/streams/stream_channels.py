"""The channels of all streams, as a stream sees them: an interface that `channels.manager` implements."""

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from busway.broker.streams.stream import Stream


class StreamChannels(Protocol):
    """The channels of all streams, as a stream sees them."""

    async def added(self, stream: "Stream") -> None:
        """Open the channels of a new or reopened stream."""

    async def removed(self, stream: "Stream") -> None:
        """End the channels of a removed stream."""

    def changed(self, stream: "Stream") -> None:
        """The settings of a stream have changed."""

    def trimmed(self, stream: "Stream") -> None:
        """Retention has removed messages from a stream."""

    def floor(self, stream: "Stream", channel: str) -> int | None:
        """A channel has finished all offsets below this one; None: there is no such channel."""

    def damage(self, number: int) -> int:
        """How many damaged places the progress log of a stream has."""

    def figures(self, number: int) -> list[dict[str, Any]]:
        """The figures of all channels of a stream."""
