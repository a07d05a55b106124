"""Acknowledgements: passes ACK and NACK frames to their channel, and answers when the journal has recorded them."""

import asyncio
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from busway.broker.channels.driver import ChannelDriver
from busway.broker.channels.frames import MILLI, Entry, Nack, What
from busway.broker.channels.state.actions import AckResult, Action
from busway.broker.channels.state.consumers import Who
from busway.broker.channels.state.progress import Span
from busway.errors import BusError, Code, StoreFailed

if TYPE_CHECKING:
    from busway.broker.channels.consumers import ChannelConsumers
    from busway.broker.peers import ChannelPeers
    from busway.broker.runtime import Runtime
    from busway.broker.session import Session

_LONGEST: Final = (1 << 31) - 1
"""The longest lease in milliseconds, and the most messages, that the answer to a renewal has room for."""


class Acks:
    """The acknowledgements of one broker."""

    def __init__(self, runtime: "Runtime", consumers: "ChannelConsumers", peers: "ChannelPeers") -> None:
        self._runtime = runtime
        self._consumers = consumers
        self._peers = peers
        self.pending = 0
        """Acknowledgements that wait for the journal."""

    def acknowledge(self, consumer: Who, driver: ChannelDriver, call: int, entries: list[Entry]) -> None:
        """Handle an ACK. It is answered when the journal has recorded it as safely as the stream promises."""
        if entries[0].what is What.RENEW:
            self._renew(consumer, driver, call)
            return
        given = [(entry.start, entry.many) for entry in entries if entry.what not in {What.EXTEND, What.LAPSE}]
        self._check_ownership(consumer, driver, given)
        self._do(consumer, driver, call, self._apply(consumer, driver, entries))

    def fail(self, consumer: Who, driver: ChannelDriver, call: int, nack: Nack) -> None:
        """Handle a NACK. It is answered when the journal has recorded it as safely as the stream promises."""
        self._check_ownership(consumer, driver, nack.spans)
        machine, now = driver.machine, driver.now
        if nack.reject:
            actions = machine.acks.reject(consumer, nack.spans, now, failure=nack.failure)
        else:
            delay = None if nack.delay is None else nack.delay * MILLI
            actions = machine.acks.nack(consumer, nack.spans, delay, now, failure=nack.failure)
        self._do(consumer, driver, call, [actions])

    def _check_ownership(self, consumer: Who, driver: ChannelDriver, given: Iterable[Span]) -> None:
        if driver.machine.suspended:
            driver.machine.revoke(consumer, given)
            text = "another broker may own it, and deliver from it; the message may be redelivered"
            raise StoreFailed(f"channel {driver.name!r}: {text}")

    def _do(self, consumer: Who, driver: ChannelDriver, call: int, steps: Iterable[list[Action]]) -> None:
        good, left = 0, list[Span]()
        written: asyncio.Future[None] | None = None
        for actions in steps:
            for action in actions:
                if isinstance(action, AckResult):
                    good += action.good
                    left += action.left
            written = driver.do(actions) or written
        if written is None or (written.done() and written.exception() is None):
            self._answer(consumer, call, good, left)
        else:
            session = self._runtime.sessions.get(consumer[0])
            self.pending += 1
            written.add_done_callback(lambda written: self._answer_later(session, consumer, call, good, left, written))

    def _apply(self, consumer: Who, driver: ChannelDriver, entries: list[Entry]) -> Iterator[list[Action]]:
        machine, now = driver.machine, driver.now
        at = 0
        while at < len(entries):
            what, _, _, delay = entries[at]
            end = at
            spans: list[Span] = []
            while end < len(entries) and entries[end].what is what and entries[end].delay == delay:
                spans.append((entries[end].start, entries[end].many))
                end += 1
            at = end
            if what is What.ACK:
                yield machine.acks.ack(consumer, spans, now)
            elif what is What.EXTEND:
                yield machine.acks.extend(consumer, spans, now)
            elif what is What.LAPSE:
                yield machine.acks.lapse(consumer, spans)
            else:
                if what is What.RELEASE:
                    machine.stop(consumer)  # it is about to leave, and must not get the same messages again
                yield machine.acks.nack(consumer, spans, delay, now, counted=what is What.NACK)

    def _renew(self, consumer: Who, driver: ChannelDriver, call: int) -> None:
        """Renew the leases of a consumer. The answer has the lease time and the number of messages in flight."""
        (answer,) = driver.machine.acks.renew(consumer, driver.now)
        assert isinstance(answer, AckResult)
        held = answer.good
        if consumer[0] not in self._consumers.node_sinks:
            held += self._peers.renew(consumer)
        lease = min(int(driver.machine.config.lease * 1000 + 0.999), _LONGEST)
        self._consumers.sink(consumer).result(consumer, call, Code.OK, lease << 32 | min(held, _LONGEST), "")

    def _answer(self, consumer: Who, call: int, good: int, left: list[Span]) -> None:
        if left:
            self._consumers.sink(consumer).result(
                consumer, call, Code.ACK_LATE, good, msgspec.json.encode(left).decode()
            )
        else:
            self._consumers.sink(consumer).result(consumer, call, Code.OK, good, "")

    def _answer_later(
        self,
        session: "Session | None",
        consumer: Who,
        call: int,
        good: int,
        left: list[Span],
        written: "asyncio.Future[None]",
    ) -> None:
        self.pending -= 1
        if session is not None and session.conn < 0:
            return  # the connection has ended, and another one may have its number
        error = None if written.cancelled() else written.exception()
        if isinstance(error, BusError):
            self._consumers.sink(consumer).result(consumer, call, error.code, 0, error.reason)
        else:
            self._answer(consumer, call, good, left)
        self._runtime.flush()
