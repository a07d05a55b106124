"""The cluster's implementation of the broker's peer interfaces for streams and channels.

The mesh creates these objects, and the broker calls them. Each method delegates to a part of the cluster.
"""

from collections.abc import Sequence
from typing import Any, Literal

from busway.broker.admin.survey import NodeAnswer
from busway.broker.channels.dead_letters.redrive import Letter
from busway.broker.channels.driver import ChannelDriver
from busway.broker.channels.frames import Join, Take
from busway.broker.channels.state.consumers import Who
from busway.broker.peers import ChannelPeers, Placements, Portion, StreamPeers
from busway.broker.streams.stream import Stream
from busway.cluster.channels.remote_consumer import RemoteConsumers
from busway.cluster.definitions.agreement import Agreement
from busway.cluster.links.links import Links
from busway.cluster.promotion.promotion import Promotion
from busway.cluster.replication.primary_driver import PrimaryDriver
from busway.cluster.streams.messages import Place
from busway.cluster.streams.provider import StreamProvider
from busway.cluster.streams.publish_lookup import PublishLookup
from busway.cluster.streams.reader import RemoteReader
from busway.cluster.streams.survey import Question, Survey


class ClusterStreams(StreamPeers):
    """The streams of the other nodes, for the broker."""

    def __init__(
        self,
        links: Links,
        definitions: Agreement,
        replication: PrimaryDriver,
        promotion: Promotion,
        provider: StreamProvider,
        reader: RemoteReader,
        lookup: PublishLookup,
        survey: Survey,
    ) -> None:
        self._links = links
        self._definitions = definitions
        self._replication = replication
        self._promotion = promotion
        self._provider = provider
        self._reader = reader
        self._lookup = lookup
        self._survey = survey

    @property
    def mirrored(self) -> bool:  # type: ignore[override]
        return self._replication.mirrored

    def changed(self, stream: Stream, *, there: bool) -> None:
        if self._definitions.loaded:  # streams that are opened at the start are no changes
            self._provider.changed(stream, there=there)
            self._definitions.stream(stream, there=there)
            self._replication.stream(stream, there=there)
            self._promotion.stream_changed(stream, there=there)

    def check_limit(self, key: str) -> None:
        self._definitions.check_room(key)

    async def agreed(self, key: str) -> None:
        await self._definitions.agreed(key)

    async def survey(self, name: str | None) -> list[NodeAnswer]:
        return await self._survey.ask(Question("streams", name or "", None))

    async def read(self, guid: str, name: str, offset: int, most: int, pattern: str, rules: bytes) -> Portion:
        return await self._reader.read(guid, name, offset, most, pattern, rules)

    async def locate(self, guid: str, name: str, time: int) -> int:
        return await self._reader.locate(guid, name, time)

    async def positions(
        self, session: int, guids: Sequence[str], runs: Sequence[tuple[int, int]], within: float
    ) -> Placements:
        return await self._lookup.find(Place(session, tuple(guids), tuple(runs)), within)

    def mirrored_nodes(self) -> list[str]:
        members = self._links.members
        nodes = [*members.known, *(node for conn in members.linked.values() if (node := members.node_of(conn)))]
        names = {node.guid: node.name or node.guid for node in nodes}
        return sorted(names.get(guid, guid) for guid in self._promotion.mirrored)

    def copied(self, guid: str, stream: Stream, *, there: bool) -> None:
        self._provider.copied(guid, stream, there=there)

    def stored(self) -> None:
        self._replication.stored()


class ClusterChannels(ChannelPeers):
    """The channels of the other nodes, for the broker."""

    def __init__(
        self,
        definitions: Agreement,
        replication: PrimaryDriver,
        promotion: Promotion,
        consumers: RemoteConsumers,
        survey: Survey,
    ) -> None:
        self._definitions = definitions
        self._replication = replication
        self._promotion = promotion
        self._consumers = consumers
        self._survey = survey

    def changed(self, stream: str, name: str, settings: dict[str, Any] | None, start: tuple[str, Any] | None) -> None:
        self._definitions.channel(stream, name, settings, start)
        if settings is None:
            self._promotion.channel_removed(stream, name)

    def check_limit(self, key: str) -> None:
        self._definitions.check_room(key)

    async def agreed(self, key: str) -> None:
        await self._definitions.agreed(key)

    def progress_written(self, stream: Stream) -> None:
        self._replication.progress_written(stream)

    async def survey(self, stream: str, channel: str | None) -> list[NodeAnswer]:
        return await self._survey.ask(Question("list", stream, channel))

    async def seek(self, stream: str, channel: str, start: tuple[str, Any], guid: str | None) -> list[NodeAnswer]:
        return await self._survey.ask(Question("seek", stream, channel, start), guid)

    async def dead_letters(
        self, what: Literal["dead", "redrive"], stream: str, channel: str, letters: Sequence[Letter], guid: str
    ) -> list[NodeAnswer]:
        return await self._survey.ask(Question(what, stream, channel, ("letters", letters)), guid)

    def joined(self, who: Who, join: Join, driver: ChannelDriver) -> None:
        self._consumers.joined(who, join, driver)

    def left(self, who: Who, *, lost: bool = False) -> None:
        self._consumers.left(who, lost=lost)

    def take(self, who: Who, call: int, take: Take | int) -> bool:
        return self._consumers.take(who, call, take)

    def acknowledge(self, who: Who, guid: str, call: int, kind: int, rest: bytes) -> None:
        self._consumers.acknowledge(who, guid, call, kind, rest)

    def acknowledged_here(self, who: Who) -> None:
        self._consumers.acknowledged_here(who)

    def renew(self, who: Who) -> int:
        return self._consumers.renew(who)

    def more_here(self, who: Who) -> None:
        self._consumers.more_here(who)
