"""Sender of one client: publishes that wait for room or for a connection, and frames that have an answer.

The verbs of the bus call it when the native fast path can't send a message at once.
"""

import asyncio
from collections.abc import Iterable
from math import ceil
from typing import Any, Final

from busway.client.connection.core import Core
from busway.client.typed.protocol import outgoing
from busway.common.checks import check_seconds, check_timeout
from busway.common.durations import Duration
from busway.errors import Code, Forbidden
from busway.settings import Buffer, Offline, Scope, check_offline, check_scope
from busway.topic import check_topic, is_reserved

PUBLISH: Final = 0x10
PUSH: Final = 0x11
REQUEST: Final = 0x12
CONFIRM: Final = 0x02
"""The flag of a PUBLISH that the broker answers."""
GATHER: Final = 0x02
"""The flag of a REQUEST that every willing service answers."""

_EACH_UNIT: Final = 0.01
"""Seconds per unit of a REQUEST's time limit for each service."""
_MAX_EACH: Final = 0xFFFF * _EACH_UNIT
_SAFE_TIMEOUT: Final = 1e6
"""Timeouts in seconds below this need no check that they fit into a REQUEST."""


class Sender:
    """The sending paths of one client that may have to wait."""

    def __init__(self, core: Core, offline: Offline) -> None:
        check_offline(offline)
        self._core = core
        self._offline = offline
        self._publish = core.session.publish

    async def publish(
        self, topic: str, data: bytes | str, offline: Offline | None, fields: bytes, scope: int = 0
    ) -> None:
        """Publish as soon as there is room. Without a connection, `offline` decides."""
        core = self._core
        while self._publish(topic, data, fields, scope) is None:
            if core.open:
                await self.room()
            elif isinstance(policy := offline or self._offline, Buffer) and core.state in {"lost", "connected"}:
                checked = check_topic(topic)
                if is_reserved(checked):
                    raise Forbidden(
                        f"topic {topic!r} belongs to the broker: only requests may name it", code=Code.RESERVED
                    )
                core.offline_buffer.add(checked, data, fields, policy, core.loop.time(), scope)
                return
            else:
                raise core.unavailable_error()

    async def publish_many(self, topic: str, payloads: Iterable[object], fields: bytes, scope: int = 0) -> int:
        """Publish all payloads on one topic and return their number."""
        items: Any = payloads if isinstance(payloads, list | tuple) else list(payloads)
        take = self._core.session.publish_many
        done, count = 0, len(items)
        while done < count:
            try:
                done, _ = take(topic, items, done, fields, scope=scope)
            except (TypeError, BufferError):  # this payload has to be encoded first
                await self.publish(*outgoing(topic, items[done]), None, fields, scope)
                done += 1
                continue
            if done < count:
                if self._core.open:
                    await self.room()
                else:
                    await self.publish(*outgoing(topic, items[done]), None, fields, scope)
                    done += 1
        return count

    async def room(self) -> None:
        """Write all waiting output and return in a later iteration of the loop, when the transport has room."""
        connection = self._core.usable()
        connection.flush()
        if connection.paused or connection.stopped:
            await connection.room(publish=True)
        else:
            await asyncio.sleep(0)

    async def ask(
        self,
        kind: int,
        topic: str,
        data: bytes | str,
        timeout: float | None,
        *,
        flags: int = 0,
        aux: int = 0,
        each: int = 0,
        fields: bytes,
    ) -> Any:
        """Send a frame that has an answer, and wait for the answer."""
        core = self._core
        connection = core.usable()
        if connection.paused or (connection.stopped and kind == PUBLISH):
            await connection.room(publish=kind == PUBLISH)
            connection = core.usable()
        pending = core.pending
        if alone := not pending:
            connection.defer_flush()
        try:
            number = core.session.send(kind, topic, data, flags=flags, aux=aux, each=each, fields=fields)
        except BaseException:
            connection.flush()
            raise
        future = pending.add(number, timeout, topic)
        connection.frame_encoded(alone=alone)
        try:
            return await future
        except asyncio.CancelledError:
            pending.held(number)
            if pending.pop(number) is not None and core.connection is connection:
                core.session.cancel(number)
            raise


def scope_flags(scope: Scope) -> int:
    """The flags of a REQUEST or SERVE with this scope."""
    return check_scope(scope) << 2


def limits(timeout: Duration | None, each: Duration | None) -> tuple[int, int]:
    """The encoded time limits of a REQUEST: `aux` for the whole request in ms, `each` per service in units of 10 ms."""
    if timeout is None:
        aux = 0
    elif (type(timeout) is float or type(timeout) is int) and 0.001 <= timeout < _SAFE_TIMEOUT:
        aux = int(timeout * 1000)
    else:
        timeout = check_timeout("timeout", timeout)
        assert timeout is not None
        aux = max(1, min(int(timeout * 1000), 0xFFFFFFFF))
    if each is None:
        return aux, 0
    each = check_seconds("each", each, zero=False)
    if each > _MAX_EACH:
        raise ValueError(f"each must be at most {_MAX_EACH:g} seconds, but is {each!r}")
    return aux, max(1, ceil(round(each / _EACH_UNIT, 6)))
