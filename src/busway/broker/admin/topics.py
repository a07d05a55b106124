"""`$bus/topics` and `$bus/topic`: the topics in use as a tree, and the users of one topic.

A tree may have a million topics, so a request gets one level of it. The scan of the topic table takes turns with other
work of the event loop, and one scan runs at a time.
"""

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from busway._core import Message, TopicLevel, check_topic
from busway.broker.admin.connections import shown
from busway.broker.admin.paging import LARGEST, MOST
from busway.errors import Code, Rejected

if TYPE_CHECKING:
    from busway.broker.hub import Hub

_SLICE: Final = 20_000
"""Topics that are scanned in one turn of the event loop: a few milliseconds."""
_KEPT: Final = 2_000
"""Retained messages that are counted in one turn."""
_BRANCHES: Final = 10_000
_USERS: Final = 500
"""Publishers and subscriptions of one topic that are listed."""


class LevelQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of a request on `$bus/topics`: the next segments below a path, the busiest or the first ones."""

    path: str = ""
    begins: str = ""
    """Only segments that begin with this text."""
    order: str = ""
    """`messages`: those with the most messages first. Empty: by name."""
    skip: Annotated[int, msgspec.Meta(ge=0, le=MOST)] = 0
    most: Annotated[int, msgspec.Meta(ge=0, le=LARGEST)] = 200


class TopicQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of a request on `$bus/topic`."""

    topic: str


class TopicScans:
    """The scans of one broker, one at a time."""

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub
        self._lock = asyncio.Lock()

    async def level(self, question: LevelQuestion) -> dict[str, Any]:
        """One level of the tree."""
        path = check_topic(question.path, wildcards=False) if question.path else ""
        level = TopicLevel(path, begins=question.begins, most=_BRANCHES)
        async with self._lock:
            while self._hub.engine.scan_topics(level, _SLICE):  # noqa: ASYNC110, other work takes its turn
                await asyncio.sleep(0)
            kept = await self._kept(path, question.begins)
        rows = {
            name: {"segment": name, "topics": topics, "messages": messages, "leaf": leaf, "kept": kept.pop(name, 0)}
            for name, topics, messages, leaf in level.branches
        }
        for name, count in kept.items():  # a topic that only a retained message has
            rows[name] = {"segment": name, "topics": 0, "messages": 0, "leaf": False, "kept": count}
        ordered = sorted(rows.values(), key=_name)
        if question.order == "messages":
            ordered.sort(key=_messages, reverse=True)
        elif question.order:
            raise Rejected(f"order: there is no figure {question.order!r}", code=Code.INVALID_SETTING)
        others, others_messages = level.others
        return {
            "path": path,
            "total": len(rows),
            "skip": question.skip,
            "branches": ordered[question.skip : question.skip + question.most],
            "others": {"topics": others, "messages": others_messages},
        }

    async def _kept(self, path: str, begins: str) -> dict[str, int]:
        """The number of retained messages below a path, by their next segment."""
        found: dict[str, int] = {}
        start = f"{path}/" if path else ""
        topics = [message.topic for message in self._hub.retained.box]
        for at in range(0, len(topics), _KEPT):
            for topic in topics[at : at + _KEPT]:
                if topic.startswith(start + begins) and not topic.startswith("$bus/"):
                    segment = topic[len(start) :].partition("/")[0]
                    if segment in found or len(found) < _BRANCHES:
                        found[segment] = found.get(segment, 0) + 1
            await asyncio.sleep(0)
        return found


def _name(row: dict[str, Any]) -> str:
    return str(row["segment"])


def _messages(row: dict[str, Any]) -> int:
    return int(row["messages"])


async def topics(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/topics`: one level of the tree of topics in use."""
    payload = message.payload
    return await hub.topic_scans.level(msgspec.json.decode(payload, type=LevelQuestion) if payload else LevelQuestion())


def topic(hub: "Hub", message: Message) -> dict[str, Any]:
    """`$bus/topic`: the publishers and subscriptions of one topic, and the stream that claims it."""
    name = check_topic(msgspec.json.decode(message.payload, type=TopicQuestion).topic, wildcards=False)
    messages, publishers, subscriptions = hub.engine.topic_users(name)
    stream = hub.streams.taking(name)
    return {
        "topic": name,
        "messages": messages,
        "stream": None if stream is None else stream.config.name,
        "publisher_count": len(publishers),
        "publishers": list(islice(_publishers(hub, publishers), _USERS)),
        "subscription_count": len(subscriptions),
        "subscriptions": list(islice(_subscriptions(hub, subscriptions), _USERS)),
        "kept": len(hub.retained.box.select(name)),
    }


def _publishers(hub: "Hub", conns: list[int]) -> Iterator[dict[str, Any]]:
    """The clients and nodes of these connections."""
    for conn in conns:
        if conn in hub.sessions:
            figures = shown(hub, conn)
            yield {name: figures[name] for name in ("client", "name", "peer", "node", "messages_received")}


def _subscriptions(hub: "Hub", found: list[tuple[int, int, str]]) -> Iterator[dict[str, Any]]:
    for conn, _, group in found:
        if (session := hub.sessions.get(conn)) is not None:
            yield {"client": session.client, "name": session.name, "node": session.node, "group": group}
