"""Takes: the TAKE frames by which a consumer without a window asks for messages, and their answers. A channel calls it."""

import asyncio
import struct
from collections.abc import Callable
from typing import Final

from busway.client.connection.core import Core
from busway.client.connection.registration import Registration
from busway.errors import Disconnected, Timeout

_TAKE: Final = 0x32
_TAKE_BODY: Final = struct.Struct("<II")
_CANCEL_BODY: Final = struct.Struct("<IQ")
_WHOLE: Final = 0x80000000
"""The flag of a TAKE that is answered only when the broker has delivered all that it asks for."""
_NO_LIMIT: Final = (1 << 32) - 1
_ANSWER_DELAY: Final = 5.0
"""Seconds that the broker's answer to a TAKE may come after its timeout."""


class Takes:
    """The pending takes of one channel."""

    def __init__(self, core: Core, registration: Registration, joined: Callable[[], bool]) -> None:
        """`joined` returns whether the current connection has joined the channel."""
        self._core = core
        self._registration = registration
        self._joined = joined
        self._answers: dict[int, asyncio.Future[int]] = {}
        """The pending answers, by the number of the TAKE frame."""

    @property
    def pending(self) -> bool:
        """Whether a take waits for the broker's answer."""
        return bool(self._answers)

    async def take(self, most: int, timeout: float | None, *, whole: bool) -> int:
        """Ask the broker for so many messages. Returns how many it has delivered to the inbox.

        0 means that the caller has to try again: the connection was lost, or the take was ended. Raises Timeout.
        """
        core = self._core
        milliseconds = _NO_LIMIT if timeout is None else min(int(timeout * 1000 + 0.999), _NO_LIMIT - 1)
        number = core.session.channel(
            _TAKE, self._registration.number, _TAKE_BODY.pack(most | _WHOLE * whole, milliseconds)
        )
        answer = self._answers[number] = core.answer(number)
        begin = core.loop.time()
        got: int
        try:
            if timeout is None:
                got = await answer
            else:
                async with asyncio.timeout(timeout + _ANSWER_DELAY):
                    got = await answer
        except Disconnected:
            return 0
        except (asyncio.CancelledError, TimeoutError) as error:
            self._cancel(number, answer)
            if isinstance(error, asyncio.CancelledError):
                raise
            got = 0
        finally:
            del self._answers[number]
        if not got and timeout is not None and core.loop.time() >= begin + timeout:
            raise Timeout(f"nothing to take from {self._registration.label!r} within {timeout:g} s")
        return got

    def end(self) -> None:
        """End every take that waits for the broker's answer."""
        for answer in self._answers.values():
            if not answer.done():
                answer.set_result(0)

    def _cancel(self, number: int, answer: "asyncio.Future[int]") -> None:
        """Cancel a TAKE whose caller does not wait any more. Other takes get the messages that it has got."""
        if not answer.cancelled():  # the answer arrived at the same moment
            self._cancelled(answer)
        elif self._joined():
            self._core.answer(number).add_done_callback(self._cancelled)
            self._core.session.channel(_TAKE, self._registration.number, _CANCEL_BODY.pack(0, number))

    def _cancelled(self, answer: "asyncio.Future[int]") -> None:
        if not answer.cancelled() and answer.exception() is None and answer.result():
            # The other takes look at the inbox only when their own answers arrive, which CANCEL brings about.
            for number in self._answers:
                self._core.session.channel(_TAKE, self._registration.number, _CANCEL_BODY.pack(0, number))
