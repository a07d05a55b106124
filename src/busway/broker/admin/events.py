"""Events of the broker: messages on topics below `$bus/cluster`, `$bus/disk` and `$bus/auth`, for subscribers of this broker only.

The hub passes subscriptions to these topics here; the disk watch and the cluster report events. A wildcard in a pattern
for other topics never matches an event.
"""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from busway._core import Selection
from busway.broker.flags import FIELDS, SINCE
from busway.broker.retained.store import body_of
from busway.common import environment
from busway.errors import Code, Forbidden
from busway.fields import encode_fields

if TYPE_CHECKING:
    from busway.broker.runtime import Runtime

log = logging.getLogger("busway.broker")

CLUSTER: Final = "$bus/cluster"
DISK: Final = "$bus/disk"
AUTH: Final = "$bus/auth"
_LOCAL: Final = 0x10
"""A flag of SUBSCRIBE: only messages of this node. Other nodes don't learn of it, and the engine reports its end."""


def is_for_events(pattern: str) -> bool:
    """Whether a pattern selects events."""
    return pattern.startswith((f"{CLUSTER}/", f"{DISK}/", f"{AUTH}/"))


class ClusterEvents:
    """The subscriptions to events of one broker."""

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime
        self._subscriptions: dict[int, dict[int, Selection]] = {}
        """The selections, by connection and number of the subscription."""
        self._session = environment.randbits(64) or 1
        self._client = 0
        self._number = 0
        self.dropped = 0

    def subscribe(self, event: tuple[Any, ...]) -> None:
        """Enter a SUBSCRIBE into the engine. Raises for a bad pattern or rule."""
        _, conn, sub, number, flags, policy, pattern, group, rules, _ = event
        if group or flags & SINCE:
            text = (
                "events of the broker take no group and no since, because every subscriber gets them and none is stored"
            )
            raise Forbidden(text, code=Code.RESERVED)
        pattern = pattern.removeprefix("/")
        selection = Selection(pattern, rules)
        if (
            self._runtime.engine.subscribe(conn, sub, number, flags | _LOCAL, policy, pattern, group, rules, None)
            == Code.OK
        ):
            self._subscriptions.setdefault(conn, {})[sub] = selection

    def end(self, conn: int, sub: int) -> None:
        """Forget a subscription that has ended, if it was one to events."""
        self._subscriptions.get(conn, {}).pop(sub, None)

    def forget(self, conn: int) -> None:
        self._subscriptions.pop(conn, None)

    def tell(self, topic: str, fields: Mapping[str, Any], text: str) -> None:
        """Publish an event."""
        if not self._subscriptions:
            return
        runtime = self._runtime
        if not self._client:
            runtime.clients += 1
            self._client = runtime.clients
        self._number += 1
        packed, payload, now = encode_fields(fields), text.encode(), environment.time_ns()
        body = body_of(now, self._number, packed, payload)
        message = self._client, self._session, runtime.name, FIELDS if packed else 0, topic, body
        for conn, subscriptions in self._subscriptions.items():
            subs = [
                sub
                for sub, selection in subscriptions.items()
                if selection.covers(topic)
                and selection.matches(topic, packed, payload, runtime.name, self._session, now)
            ]
            if subs and runtime.engine.pending(conn) > runtime.settings.outbox // 2:
                self.dropped += 1
                runtime.engine.miss(conn, subs)
                log.warning("the event %s was dropped for connection %d, which reads too slowly", topic, conn)
            elif subs:
                runtime.engine.deliver_retained(conn, subs, message)
