"""What a server knows of itself, as metrics for Prometheus: from its figures to families of samples.

Values only: nothing is counted here, and nothing per message. A log is a stream, a cursor is a channel: these are the names
that dashboards of other systems have for them.
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
"""Streams, and channels, that have samples of their own; there may be very many, and `busway_logs` tells how many."""

_COUNTERS: Final = {
    "messages_received": ("busway_messages_received", "Messages that came from clients and other nodes."),
    "messages_delivered": ("busway_messages_delivered", "Messages that were handed to clients and other nodes."),
    "received_bytes": ("busway_received_bytes", "Bytes that came over native connections."),
    "delivered_bytes": ("busway_delivered_bytes", "Bytes that were queued for native connections."),
    "messages_unroutable": ("busway_messages_unroutable", "Messages that nobody wanted."),
    "messages_rejected": ("busway_messages_rejected", "Messages that were refused with an error."),
    "requests": ("busway_requests", "Requests to services."),
    "late_replies": ("busway_late_replies", "Replies that came when nobody waited for them any more."),
    "pushes": ("busway_pushes", "Pushes to one consumer."),
    "protocol_errors": ("busway_protocol_errors", "Frames that broke the rules of the protocol."),
    "rule_errors": ("busway_rule_errors", "Rules of subscriptions that could not be evaluated."),
    "refused": ("busway_connections_refused", "Connections and handshakes that were refused."),
    "faults": ("busway_connection_faults", "Connections that the broker closed for what they did."),
    "errors": ("busway_internal_errors", "Errors of the broker itself."),
    "doubtful": ("busway_messages_doubtful", "Messages that may have been stored twice."),
    "shared_late": ("busway_shared_late", "Replies of shared services that came too late."),
}
"""By their name in `Server.stats()`."""

_GAUGES: Final = {
    "subscriptions": ("busway_subscriptions", "Subscriptions."),
    "groups": ("busway_groups", "Groups of subscriptions."),
    "services": ("busway_services", "Services of clients."),
    "topics": ("busway_topics", "Topics that the broker has numbers for."),
    "pending": ("busway_pending_requests", "Requests and pushes that are not answered yet."),
    "slow_consumers": ("busway_slow_consumers", "Connections that read more slowly than is written for them."),
}

_LOG: Final = {
    "bytes": ("busway_log_bytes", "Bytes of the records of a stream."),
    "first": ("busway_log_first_sequence", "The first offset of a stream that is there."),
    "waiting": ("busway_log_waiting_messages", "Messages of a stream that wait for their time."),
    "held": ("busway_log_held_messages", "Messages beyond the limits of a stream that stay for its channel."),
    "damage": ("busway_log_damage", "Places of a stream that are known to be lost or changed."),
    "topic_count": ("busway_log_topics", "Topics that a stream has stored."),
}

_CURSOR: Final = {
    "lag": ("busway_cursor_lag_messages", "Messages of a stream that its channel has not done."),
    "in_flight": ("busway_cursor_in_flight_messages", "Messages that are with the consumers of a channel."),
    "consumers": ("busway_cursor_consumers", "Consumers of a channel."),
}

_CURSOR_COUNTERS: Final = {
    "redelivered": ("busway_messages_redelivered", "Messages that a channel has handed out again."),
    "dead": ("busway_dead_letters", "Messages that a channel has given up."),
    "lost": ("busway_cursor_lost", "Messages that were removed from the stream before its channel had done them."),
}


class _Families(Collector):
    """What was made before, as a registry asks for it."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families

    def describe(self) -> Iterable[Metric]:
        return ()


def exposition(families: Iterable[Metric], accept: str = "") -> tuple[bytes, str]:
    """The text that is scraped, with the figures of the process, and its type: OpenMetrics if `accept` asks for that."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    ProcessCollector(registry=registry)
    encode, kind = choose_encoder(accept)
    return encode(registry), kind


def counter(name: str, text: str, value: float | Labelled, labels: Iterable[str] = ()) -> Metric:
    """A counter: one value, or one for each combination of labels. Its name gets the end `_total`."""
    return _fill(CounterMetricFamily(name, text, labels=tuple(labels)), value)


def gauge(name: str, text: str, value: float | Labelled, labels: Iterable[str] = ()) -> Metric:
    return _fill(GaugeMetricFamily(name, text, labels=tuple(labels)), value)


def _fill(
    family: CounterMetricFamily | GaugeMetricFamily, value: float | Labelled
) -> CounterMetricFamily | GaugeMetricFamily:
    if isinstance(value, Mapping):
        for labels, one in value.items():
            family.add_metric(labels, one)
    else:
        family.add_metric((), value)
    return family


def families(figures: Mapping[str, Any]) -> Iterator[Metric]:
    """The families of `Server.figures()`."""
    yield from _broker(figures)
    yield from _connections(figures)
    yield from _traffic(figures["stats"])
    yield from _kept(figures["kept"])
    yield from _disk(figures["disk"])
    yield from _logs(figures)
    yield from _cursors([channel for stream in figures["streams"] for channel in stream["channels"]])
    if (nodes := figures["nodes"]) is not None:
        yield from _cluster(figures["stats"], nodes)


def _broker(figures: Mapping[str, Any]) -> Iterator[Metric]:
    about = InfoMetricFamily("busway_build", "Versions.")
    versions = {"version": figures["version"], "core": figures["version"], "protocol": str(PROTOCOL)}
    about.add_metric((), versions | {"python": platform.python_version()})
    yield about
    yield gauge("busway_up", "1: the broker answers.", 1)
    yield gauge("busway_uptime_seconds", "How long the broker has been there.", figures["uptime"])


def _disk(disk: Mapping[str, Any] | None) -> Iterator[Metric]:
    if disk is None:
        return
    yield gauge("busway_disk_free_bytes", "Bytes that are free on the disk of the data folder.", disk["free"])
    yield gauge("busway_disk_floor_bytes", "Below this, durable publishes are refused.", disk["floor"])
    yield gauge("busway_disk_low", "1: durable publishes are refused since the disk is nearly full.", disk["low"])
    text = "How often the free space of the disk fell below the floor."
    yield counter("busway_disk_low_periods", text, disk["times"])


def _connections(figures: Mapping[str, Any]) -> Iterator[Metric]:
    opened: Mapping[str, int] = figures["transports"]
    ended: Mapping[tuple[str, str], int] = figures["ended"]
    open_now = {(way,): count - sum(n for (one, _), n in ended.items() if one == way) for way, count in opened.items()}
    yield gauge("busway_connections", "Connections, by their transport.", open_now, ["transport"])
    came = {(way,): count for way, count in opened.items()}
    yield counter("busway_connections_opened", "Connections that came.", came, ["transport"])
    yield counter("busway_connections_closed", "Connections that ended, and why.", ended, ["transport", "reason"])


def _traffic(stats: Mapping[str, int]) -> Iterator[Metric]:
    for key, (name, text) in _COUNTERS.items():
        yield counter(name, text, stats[key])
    for key, (name, text) in _GAUGES.items():
        yield gauge(name, text, stats[key])
    linked = stats["linked_dropped"]
    dropped = {("client",): stats["messages_dropped"] - linked, ("link",): linked}
    yield counter("busway_messages_dropped", "Messages that were dropped for a full queue.", dropped, ["where"])
    waiting = {("outbox",): stats["outbox_bytes"], ("aside",): stats["aside_bytes"]}
    text = "Bytes that wait: for readers (outbox), or of publishers who wait for slow readers (aside)."
    yield gauge("busway_pending_bytes", text, waiting, ["kind"])


def _kept(kept: Mapping[str, Any]) -> Iterator[Metric]:
    counts = {("post",): kept["posts"], ("pin",): kept["pins"]}
    yield gauge("busway_kept_messages", "Messages that are kept for later subscribers.", counts, ["kind"])
    yield gauge("busway_kept_bytes", "Bytes of kept messages.", kept["bytes"])


def _logs(figures: Mapping[str, Any]) -> Iterator[Metric]:
    streams = figures["streams"]
    yield gauge("busway_logs", "Streams.", len(streams))
    yield gauge("busway_logs_damaged", "Streams that could not be opened.", len(figures["damaged"]))
    listed = streams[:LISTED]
    for key, (name, text) in _LOG.items():
        yield gauge(name, text, {(one["name"],): one[key] for one in listed}, ["log"])
    there = {(one["name"],): one["next"] - one["first"] for one in listed}
    yield gauge("busway_log_messages", "Messages of a stream.", there, ["log"])
    last = {(one["name"],): one["next"] - 1 for one in listed}
    yield gauge("busway_log_last_sequence", "The last offset of a stream, -1 before the first.", last, ["log"])
    stuck = {(one["name"],): float(one["stuck"] is not None) for one in listed}
    yield gauge("busway_log_stuck", "1: messages of a stream can't be written, and no more are taken.", stuck, ["log"])
    dropped = {(one["name"],): one["dropped"] for one in listed}
    text = "Messages of a stream that were removed before they were due."
    yield counter("busway_log_dropped", text, dropped, ["log"])


def _cursors(channels: list[Mapping[str, Any]]) -> Iterator[Metric]:
    yield gauge("busway_cursors", "Channels.", len(channels))
    listed = channels[:LISTED]
    labels = ["log", "cursor"]
    for key, (name, text) in _CURSOR.items():
        yield gauge(name, text, {(one["stream"], one["name"]): one[key] for one in listed}, labels)
    for key, (name, text) in _CURSOR_COUNTERS.items():
        yield counter(name, text, {(one["stream"], one["name"]): one[key] for one in listed}, labels)


def _cluster(stats: Mapping[str, int], nodes: Mapping[str, Any]) -> Iterator[Metric]:
    """Peers are told by their guids: names need not differ."""
    yield gauge("busway_cluster_nodes", "Nodes of the cluster that this one knows, itself among them.", stats["nodes"])
    yield counter("busway_cluster_nodes_refused", "Nodes that were not let into the cluster.", stats["nodes_refused"])
    conflicts = stats["node_conflicts"]
    text = "Exclusive services that two nodes had at once, and nodes with the guid of another one."
    yield counter("busway_cluster_conflicts", text, conflicts)
    links = {(one["guid"], one["name"]): one["link"] for one in nodes["nodes"] if one["link"] is not None}
    labels = ["peer", "name"]
    up = {peer: float(link["up"]) for peer, link in links.items()}
    yield gauge("busway_link_up", "Whether there is a link to a node.", up, labels)
    trips = {peer: link["round_trip"] for peer, link in links.items() if link.get("round_trip") is not None}
    yield gauge("busway_link_rtt_seconds", "A round trip over a link, measured now.", trips, labels)
    interest = {peer: link["subscriptions"] + link["services"] for peer, link in links.items() if "services" in link}
    yield gauge("busway_interest_entries", "What a node has said that its clients want.", interest, labels)
    behind = {
        (name, mirror["guid"]): stream["behind"]
        for mirror in nodes["mirroring"]["mirrors"]
        for name, stream in list(mirror["streams"].items())[:LISTED]
    }
    text = "Messages of a stream that its mirror does not have yet."
    yield gauge("busway_mirror_lag_messages", text, behind, ["log", "node"])
    yield counter("busway_takeovers", "How often a mirror took over here.", nodes["mirroring"]["takeovers"])
