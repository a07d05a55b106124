"""What consumers say of their messages: done, not done, still at work. Told to the channel, and answered when it is noted."""

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
    from busway.broker.hub import Hub
    from busway.broker.session import Session

_LONGEST: Final = (1 << 31) - 1
"""The longest lease in milliseconds, and the most messages, that the answer to a renewal has room for."""


class Acks:
    """The acknowledgements of one hub."""

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub
        self.noting = 0
        """Acknowledgements that are answered when they are noted."""

    def settle(self, who: Who, driver: ChannelDriver, call: int, entries: list[Entry]) -> None:
        """An ACK: answered when it is noted as safely as the stream promises."""
        if entries[0].what is What.RENEW:
            self._renew(who, driver, call)
            return
        given = [(one.start, one.many) for one in entries if one.what not in {What.EXTEND, What.LAPSE}]
        self._check_turn(who, driver, given)
        self._do(who, driver, call, self._settled(who, driver, entries))

    def fail(self, who: Who, driver: ChannelDriver, call: int, nack: Nack) -> None:
        """A NACK, likewise."""
        self._check_turn(who, driver, nack.spans)
        machine, now = driver.machine, driver.now
        if nack.reject:
            actions = machine.acks.reject(who, nack.spans, now, failure=nack.failure)
        else:
            delay = None if nack.delay is None else nack.delay * MILLI
            actions = machine.acks.nack(who, nack.spans, delay, now, failure=nack.failure)
        self._do(who, driver, call, [actions])

    def _check_turn(self, who: Who, driver: ChannelDriver, given: Iterable[Span]) -> None:
        if driver.machine.suspended or not self._hub.channels.ownership.is_sure(driver.stream.copied):
            driver.machine.revoke(who, given)
            text = "the mirror of this broker may hand it out now; it may be handed out again"
            raise StoreFailed(f"channel {driver.name!r}: {text}")

    def _do(self, who: Who, driver: ChannelDriver, call: int, settled: Iterable[list[Action]]) -> None:
        good, left = 0, list[Span]()
        told: asyncio.Future[None] | None = None
        for actions in settled:
            for action in actions:
                if isinstance(action, AckResult):
                    good += action.good
                    left += action.left
            told = driver.do(actions) or told
        if told is None or (told.done() and told.exception() is None):
            self._answer(who, call, good, left)
        else:
            session = self._hub.sessions.get(who[0])
            self.noting += 1
            told.add_done_callback(lambda told: self._answer_later(session, who, call, good, left, told))

    def _settled(self, who: Who, driver: ChannelDriver, entries: list[Entry]) -> Iterator[list[Action]]:
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
                yield machine.acks.ack(who, spans, now)
            elif what is What.EXTEND:
                yield machine.acks.extend(who, spans, now)
            elif what is What.LAPSE:
                yield machine.acks.lapse(who, spans)
            else:
                if what is What.RELEASE:
                    machine.stop(who)  # it is about to leave, and must not be given the same again
                yield machine.acks.nack(who, spans, delay, now, counted=what is What.NACK)

    def _renew(self, who: Who, driver: ChannelDriver, call: int) -> None:
        """The consumer is alive. The answer has the lease, so that it knows when to renew next, and how many messages it holds."""
        (answer,) = driver.machine.acks.renew(who, driver.now)
        assert isinstance(answer, AckResult)
        held = answer.good
        if self._hub.nodes is not None and who[0] not in self._hub.channels.outlets:
            held += self._hub.nodes.renew(who)
        lease = min(int(driver.machine.config.lease * 1000 + 0.999), _LONGEST)
        self._hub.channels.outlet(who).result(who, call, Code.OK, lease << 32 | min(held, _LONGEST), "")

    def _answer(self, who: Who, call: int, good: int, left: list[Span]) -> None:
        if left:
            self._hub.channels.outlet(who).result(who, call, Code.ACK_LATE, good, msgspec.json.encode(left).decode())
        else:
            self._hub.channels.outlet(who).result(who, call, Code.OK, good, "")

    def _answer_later(
        self,
        session: "Session | None",
        who: Who,
        call: int,
        good: int,
        left: list[Span],
        told: "asyncio.Future[None]",
    ) -> None:
        self.noting -= 1
        if session is not None and session.conn < 0:
            return  # it is gone, and somebody else may have its number
        error = None if told.cancelled() else told.exception()
        if isinstance(error, BusError):
            self._hub.channels.outlet(who).result(who, call, error.code, 0, error.reason)
        else:
            self._answer(who, call, good, left)
        self._hub.flush()
