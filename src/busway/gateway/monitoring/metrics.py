"""Prometheus metrics: converts the figures of a server into families of samples.

`health.py` serves them at `/metrics`. Values only: this module counts nothing itself, and nothing runs per message.
"""

import platform
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from busway._core import PROTOCOL

Labelled: TypeAlias = Mapping[Any, float]
"""A value for each tuple of labels."""

LISTED: Final = 1000
"""Number of streams, and of channels, with samples of their own; `busway_streams` and `busway_channels` count all."""

_COUNTERS: Final = {
    "messages_received": ("busway_messages_received", "Messages received from clients and other nodes."),
    "messages_delivered": ("busway_messages_delivered", "Messages delivered to clients and other nodes."),
    "received_bytes": ("busway_received_bytes", "Bytes received over native connections."),
    "delivered_bytes": ("busway_delivered_bytes", "Bytes queued for native connections."),
    "messages_unroutable": ("busway_messages_unroutable", "Messages without a receiver."),
    "messages_rejected": ("busway_messages_rejected", "Messages refused with an error."),
    "forbidden": ("busway_forbidden", "Requests of clients that the grants of their users do not allow."),
    "requests": ("busway_requests", "Requests to services."),
    "late_replies": ("busway_late_replies", "Replies that came after their requester had stopped waiting."),
    "pushes": ("busway_pushes", "Pushes to one consumer."),
    "protocol_errors": ("busway_protocol_errors", "Frames that violated the protocol."),
    "rule_errors": ("busway_rule_errors", "Evaluations of subscription rules that failed."),
    "refused": ("busway_connections_refused", "Connections and handshakes refused."),
    "faults": ("busway_connection_faults", "Connections that the broker closed because of an error of the client."),
    "errors": ("busway_internal_errors", "Internal errors of the broker."),
    "doubtful": ("busway_messages_doubtful", "Messages that may be stored twice."),
    "shared_late": ("busway_shared_late", "Replies of providers of shared services that came too late."),
}
"""Name and help text of each counter, by its key in `Server.stats()`."""

_GAUGES: Final = {
    "subscriptions": ("busway_subscriptions", "Subscriptions."),
    "groups": ("busway_groups", "Groups of subscriptions."),
    "services": ("busway_services", "Services of clients."),
    "topics": ("busway_topics", "Topics in the topic table of the broker."),
    "pending": ("busway_pending_requests", "Requests and pushes without an answer so far."),
    "slow_consumers": ("busway_slow_consumers", "Connections that read more slowly than the broker writes."),
}

_STREAM: Final = {
    "bytes": ("busway_stream_bytes", "Bytes of the records of a stream."),
    "first": ("busway_stream_first_offset", "The first offset that a stream still has."),
    "waiting": ("busway_stream_waiting_messages", "Messages of a stream published with a delay that is not over."),
    "held": ("busway_stream_held_messages", "Messages beyond the limits of a stream that it keeps for its channel."),
    "damage": ("busway_stream_damage", "Known lost or changed ranges of a stream."),
    "topic_count": ("busway_stream_topics", "Topics with messages in a stream."),
}

_CHANNEL: Final = {
    "lag": ("busway_channel_lag_messages", "Messages of a stream that its channel has not acknowledged."),
    "in_flight": ("busway_channel_in_flight_messages", "Messages in flight to the consumers of a channel."),
    "consumers": ("busway_channel_consumers", "Consumers of a channel."),
}

_CHANNEL_COUNTERS: Final = {
    "redelivered": ("busway_messages_redelivered", "Messages that a channel has redelivered."),
    "dead": ("busway_dead_letters", "Messages that a channel has moved to its dead-letter topic."),
    "lost": ("busway_channel_lost", "Messages removed from the stream before its channel acknowledged them."),
}


class _Families(Collector):
    """A collector over families that exist already, for a registry."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families

    def describe(self) -> Iterable[Metric]:
        return ()


def exposition(families: Iterable[Metric], accept: str = "") -> tuple[bytes, str]:
    """The text for a scrape with the metrics of the process added, and its content type.

    The text is OpenMetrics if the header `accept` asks for that.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    ProcessCollector(registry=registry)
    encode, kind = choose_encoder(accept)
    return encode(registry), kind


def counter(name: str, text: str, value: float | Labelled, labels: Iterable[str] = ()) -> Metric:
    """A counter: one value, or one per combination of labels. Prometheus adds `_total` to its name."""
    return _fill(CounterMetricFamily(name, text, labels=tuple(labels)), value)


def gauge(name: str, text: str, value: float | Labelled, labels: Iterable[str] = ()) -> Metric:
    """A gauge: one value, or one per combination of labels."""
    return _fill(GaugeMetricFamily(name, text, labels=tuple(labels)), value)


def _fill(
    family: CounterMetricFamily | GaugeMetricFamily, value: float | Labelled
) -> CounterMetricFamily | GaugeMetricFamily:
    if isinstance(value, Mapping):
        for labels, number in value.items():
            family.add_metric(labels, number)
    else:
        family.add_metric((), value)
    return family


def families(figures: Mapping[str, Any]) -> Iterator[Metric]:
    """The families of `Server.figures()`."""
    yield from _broker(figures)
    yield from _connections(figures)
    yield from _traffic(figures["stats"])
    yield from _retained(figures["kept"])
    yield from _disk(figures["disk"])
    yield from _streams(figures)
    yield from _channels([channel for stream in figures["streams"] for channel in stream["channels"]])
    if (nodes := figures["nodes"]) is not None:
        yield from _cluster(figures["stats"], nodes)


def _broker(figures: Mapping[str, Any]) -> Iterator[Metric]:
    build = InfoMetricFamily("busway_build", "Versions of the broker, its engine, the protocol and Python.")
    versions = {"version": figures["version"], "core": figures["version"], "protocol": str(PROTOCOL)}
    build.add_metric((), versions | {"python": platform.python_version()})
    yield build
    yield gauge("busway_up", "1: the broker answers.", 1)
    yield gauge("busway_uptime_seconds", "Seconds since the broker started.", figures["uptime"])


def _disk(disk: Mapping[str, Any] | None) -> Iterator[Metric]:
    if disk is None:
        return
    yield gauge("busway_disk_free_bytes", "Free bytes on the disk of the data folder.", disk["free"])
    text = "Free bytes below which the broker refuses durable publishes."
    yield gauge("busway_disk_floor_bytes", text, disk["floor"])
    text = "1: the broker refuses durable publishes because the disk is nearly full."
    yield gauge("busway_disk_low", text, disk["low"])
    text = "Times that the free space of the disk fell below the floor."
    yield counter("busway_disk_low_periods", text, disk["times"])


def _connections(figures: Mapping[str, Any]) -> Iterator[Metric]:
    opened: Mapping[str, int] = figures["transports"]
    ended: Mapping[tuple[str, str], int] = figures["ended"]
    closed = dict.fromkeys(opened, 0)
    for (transport, _), count in ended.items():
        closed[transport] = closed.get(transport, 0) + count
    current = {(transport,): count - closed[transport] for transport, count in opened.items()}
    yield gauge("busway_connections", "Open connections, by transport.", current, ["transport"])
    accepted = {(transport,): count for transport, count in opened.items()}
    yield counter("busway_connections_opened", "Connections opened, by transport.", accepted, ["transport"])
    text = "Connections closed, by transport and reason."
    yield counter("busway_connections_closed", text, ended, ["transport", "reason"])


def _traffic(stats: Mapping[str, int]) -> Iterator[Metric]:
    for key, (name, text) in _COUNTERS.items():
        yield counter(name, text, stats[key])
    for key, (name, text) in _GAUGES.items():
        yield gauge(name, text, stats[key])
    linked = stats["linked_dropped"]
    dropped = {("client",): stats["messages_dropped"] - linked, ("link",): linked}
    yield counter("busway_messages_dropped", "Messages dropped because a queue was full.", dropped, ["where"])
    pending = {("outbox",): stats["outbox_bytes"], ("aside",): stats["aside_bytes"]}
    text = "Bytes queued for readers (outbox), and of publishers that wait for slow readers (aside)."
    yield gauge("busway_pending_bytes", text, pending, ["kind"])


def _retained(retained: Mapping[str, Any]) -> Iterator[Metric]:
    counts = {("post",): retained["posts"], ("pin",): retained["pins"]}
    yield gauge("busway_retained_messages", "Retained messages: posts and pins.", counts, ["kind"])
    yield gauge("busway_retained_bytes", "Bytes of retained messages.", retained["bytes"])


def _streams(figures: Mapping[str, Any]) -> Iterator[Metric]:
    streams = figures["streams"]
    yield gauge("busway_streams", "Streams.", len(streams))
    yield gauge("busway_streams_damaged", "Streams that could not be opened.", len(figures["damaged"]))
    listed = streams[:LISTED]
    labels = ["stream"]
    for key, (name, text) in _STREAM.items():
        yield gauge(name, text, {(stream["name"],): stream[key] for stream in listed}, labels)
    stored = {(stream["name"],): stream["next"] - stream["first"] for stream in listed}
    yield gauge("busway_stream_messages", "Messages of a stream.", stored, labels)
    last = {(stream["name"],): stream["next"] - 1 for stream in listed}
    yield gauge("busway_stream_last_offset", "The last offset of a stream, -1 before the first.", last, labels)
    stuck = {(stream["name"],): float(stream["stuck"] is not None) for stream in listed}
    text = "1: the broker can't write messages of a stream, and accepts no more for it."
    yield gauge("busway_stream_stuck", text, stuck, labels)
    dropped = {(stream["name"],): stream["dropped"] for stream in listed}
    text = "Delayed messages of a stream that were removed before they were due."
    yield counter("busway_stream_dropped", text, dropped, labels)


def _channels(channels: list[Mapping[str, Any]]) -> Iterator[Metric]:
    yield gauge("busway_channels", "Channels.", len(channels))
    listed = channels[:LISTED]
    labels = ["stream", "channel"]
    for key, (name, text) in _CHANNEL.items():
        yield gauge(name, text, {(channel["stream"], channel["name"]): channel[key] for channel in listed}, labels)
    for key, (name, text) in _CHANNEL_COUNTERS.items():
        yield counter(name, text, {(channel["stream"], channel["name"]): channel[key] for channel in listed}, labels)


def _cluster(stats: Mapping[str, int], nodes: Mapping[str, Any]) -> Iterator[Metric]:
    """Metrics of the cluster. The guid identifies a peer, because two nodes may have the same name."""
    yield gauge("busway_cluster_nodes", "Nodes of the cluster that this node knows, itself included.", stats["nodes"])
    yield counter("busway_cluster_nodes_refused", "Nodes refused by the cluster.", stats["nodes_refused"])
    conflicts = stats["node_conflicts"]
    text = "Exclusive services that two nodes had at once, and nodes with the guid of another node."
    yield counter("busway_cluster_conflicts", text, conflicts)
    links = {(node["guid"], node["name"]): node["link"] for node in nodes["nodes"] if node["link"] is not None}
    labels = ["peer", "name"]
    up = {peer: float(link["up"]) for peer, link in links.items()}
    yield gauge("busway_link_up", "1: the link to a node is up.", up, labels)
    trips = {peer: link["round_trip"] for peer, link in links.items() if link.get("round_trip") is not None}
    yield gauge("busway_link_rtt_seconds", "Round-trip time of a link, measured during the scrape.", trips, labels)
    interest = {peer: link["subscriptions"] + link["services"] for peer, link in links.items() if "services" in link}
    text = "Subscriptions and services that a node has announced over its link."
    yield gauge("busway_interest_entries", text, interest, labels)
    behind = {
        (name, mirror["guid"]): stream["behind"]
        for mirror in nodes["mirroring"]["mirrors"]
        for name, stream in list(mirror["streams"].items())[:LISTED]
    }
    text = "Messages of a stream that its mirror does not have yet."
    yield gauge("busway_mirror_lag_messages", text, behind, ["stream", "node"])
    yield counter("busway_promotions", "Times that this node was promoted.", nodes["mirroring"]["promotions"])
    aside = sum(one["count"] for one in nodes["mirroring"]["set_aside"])
    yield gauge("busway_records_set_aside", "Records that only this node has: see busway stream recover.", aside)
