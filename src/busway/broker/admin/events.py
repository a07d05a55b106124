"""What happens to the broker, as messages on topics below `$bus/cluster` and `$bus/disk`: given to who subscribed there, on this broker alone.

Subscriptions to other topics never match them, whatever their wildcards: each is asked for by name.
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
    from busway.broker.hub import Hub

log = logging.getLogger("busway.broker")

CLUSTER: Final = "$bus/cluster"
DISK: Final = "$bus/disk"
_LOCAL: Final = 0x10
"""SUBSCRIBE: only what comes from this node; other nodes don't hear of it, and the engine tells when it ends."""


def are_meant(pattern: str) -> bool:
    """Whether a pattern asks for events."""
    return pattern.startswith((f"{CLUSTER}/", f"{DISK}/"))


class ClusterEvents:
    """Those who want to know what happens to one hub."""

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub
        self._wanted: dict[int, dict[int, Selection]] = {}
        self._session = environment.randbits(64) or 1
        self._client = 0
        self._number = 0
        self.dropped = 0

    def subscribe(self, event: tuple[Any, ...]) -> None:
        """Let a SUBSCRIBE through. Raises for a bad pattern or rule."""
        _, conn, sub, number, flags, policy, pattern, group, rules, _ = event
        if group or flags & SINCE:
            raise Forbidden("events of the broker are for each who asks, and are not stored", code=Code.RESERVED)
        pattern = pattern.removeprefix("/")
        selection = Selection(pattern, rules)
        if (
            self._hub.engine.subscribe(conn, sub, number, flags | _LOCAL, policy, pattern, group, rules, None)
            == Code.OK
        ):
            self._wanted.setdefault(conn, {})[sub] = selection

    def end(self, conn: int, sub: int) -> None:
        """A subscription is over; maybe another one."""
        self._wanted.get(conn, {}).pop(sub, None)

    def forget(self, conn: int) -> None:
        self._wanted.pop(conn, None)

    def tell(self, topic: str, fields: Mapping[str, Any], text: str) -> None:
        """Something has happened."""
        if not self._wanted:
            return
        hub = self._hub
        if not self._client:
            hub.clients += 1
            self._client = hub.clients
        self._number += 1
        packed, payload, now = encode_fields(fields), text.encode(), environment.time_ns()
        body = body_of(now, self._number, packed, payload)
        message = self._client, self._session, hub.name, FIELDS if packed else 0, topic, body
        for conn, wanted in self._wanted.items():
            subs = [
                sub
                for sub, selection in wanted.items()
                if selection.covers(topic) and selection.matches(topic, packed, payload, hub.name, self._session, now)
            ]
            if subs and hub.engine.pending(conn) > hub.settings.outbox // 2:
                self.dropped += 1
                hub.engine.miss(conn, subs)
                log.warning("%s was not told to connection %d, which reads too slowly", topic, conn)
            elif subs:
                hub.engine.hand(conn, subs, message)
