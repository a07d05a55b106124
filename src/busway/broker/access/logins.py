"""Logins: leads each new client through its login, and calls `admit` with the user. The hub passes it the frames.

`busway.authority.login` decides. This driver sends challenges and delays guesses.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Any, Final

import msgspec

from busway.authority.guesses import Guesses
from busway.authority.login import NONCE, Admitted, Answer, Challenge, Claim, Login, Refused, Verdict
from busway.authority.policy import Policy
from busway.broker.access.authority import Authority
from busway.common import environment
from busway.errors import Code

if TYPE_CHECKING:
    from busway.broker.access.refusals import Refusals
    from busway.broker.runtime import Runtime
    from busway.broker.session import Session

log = logging.getLogger("busway.broker")

REFUSED: Final = "the credentials were refused"
"""What a client learns: neither whether the user exists, nor what was wrong."""
_LATEST: Final = 30 * 86_400.0
"""Most seconds of one timer; a later expiry is checked again then."""

Admit = Callable[[Admitted], None]
"""Called with the user of a client that has logged in."""

_decoder = msgspec.msgpack.Decoder(Answer)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A client that has a challenge."""

    session: "Session"
    login: Login
    policy: Policy
    user: str
    admit: Admit


class Logins:
    """The logins of one broker that are in progress."""

    def __init__(self, runtime: "Runtime", authority: Authority, refusals: "Refusals") -> None:
        self._runtime = runtime
        self._authority = authority
        self._refusals = refusals
        self._guesses = Guesses()
        self._waiting: dict[int, _Waiting] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._secret = environment.randbits(256).to_bytes(32)
        """Makes the salts of unknown users."""

    def begin(self, session: "Session", claim: Claim, number: int, admit: Admit) -> None:
        """Begin the login of a client after its HELLO. `number` is that of its session."""
        policy = self._authority.policy
        if policy is None:
            admit(Admitted(""))
            return
        if session.scheme == "memory" and claim == Claim():
            admit(Admitted(""))  # a client in the broker's own process, which can do everything anyway
            return
        login = Login(
            policy,
            claim,
            session.login_peer(),
            number,
            nonce=environment.randbits(8 * NONCE).to_bytes(NONCE),
            secret=self._secret,
        )
        waiting = _Waiting(session, login, policy, claim.user, admit)
        if claim.method == "token":
            self._delayed(waiting, lambda: login.begin(self._authority.tokens, environment.time_ns() / 1e9))
            return
        step = login.begin(self._authority.tokens, environment.time_ns() / 1e9)
        if isinstance(step, Challenge):
            self._waiting[session.conn] = waiting
            self._runtime.engine.challenge(session.conn, msgspec.msgpack.encode(step.map))
        else:
            self._decide(waiting, lambda: step)

    def ask(self, session: "Session", answer: Awaitable[object], then: Callable[[object], None]) -> None:
        """Wait for the answer of `authenticate`, and pass it to `then`. The handshake limits the time."""

        async def wait() -> None:
            result: object = False
            try:
                async with asyncio.timeout(self._runtime.settings.handshake):
                    result = await answer
            except TimeoutError:
                log.warning("authenticate() took more than %g s", self._runtime.settings.handshake)
            except Exception:
                log.exception("authenticate() raised an error, so the client is refused")
            if session.conn >= 0 and not session.closing:
                then(result)
                self._runtime.flush()

        task = self._runtime.loop.create_task(wait(), name="busway authenticate")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def answer(self, event: tuple[Any, ...]) -> None:
        """Handle a LOGIN."""
        _, conn, packed = event
        waiting = self._waiting.pop(conn, None)
        if waiting is None:
            return
        try:
            answer = _decoder.decode(packed)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            self._runtime.faults += 1
            waiting.session.close(Code.HANDSHAKE, f"LOGIN: {error}")
            return
        self._delayed(waiting, partial(waiting.login.answer, answer))

    def forget(self, conn: int) -> None:
        """A connection has ended."""
        self._waiting.pop(conn, None)

    def _delayed(self, waiting: _Waiting, verdict: Callable[[], Challenge | Verdict]) -> None:
        """Decide, at once or after the delay that earlier guesses cause."""
        loop = self._runtime.loop
        delay = self._guesses.delay(_address(waiting.session), waiting.user, loop.time())
        if delay <= 0:
            self._decide(waiting, verdict)
            return

        def later() -> None:
            if waiting.session.conn >= 0 and not waiting.session.closing:
                self._decide(waiting, verdict)
                self._runtime.flush()

        loop.call_later(delay, later)

    def _decide(self, waiting: _Waiting, decide: Callable[[], Challenge | Verdict]) -> None:
        session, address = waiting.session, _address(waiting.session)
        if waiting.policy is not self._authority.policy:
            session.close(Code.REVOKED, "the users have changed: connect again")
            return
        verdict = decide()
        if isinstance(verdict, Refused):
            if verdict.guess:
                self._guesses.failed(address, waiting.user, self._runtime.loop.time())
            self._refusals.login(verdict.user, session.peer(), verdict.reason)
            session.close(Code.UNAUTHORIZED, REFUSED)
        elif isinstance(verdict, Admitted):
            self._guesses.passed(address, waiting.user)
            waiting.admit(verdict)
            if verdict.expires is not None:
                self._expire(session, session.client, verdict.expires)

    def _expire(self, session: "Session", client: int, expires: float) -> None:
        """Close the session when its proof expires."""
        if session.conn < 0 or session.client != client:
            return
        left = expires - environment.time_ns() / 1e9
        if left <= 0:
            session.close(Code.REVOKED, "the proof of the user has expired: log in again")
            self._runtime.flush()
            return
        self._runtime.loop.call_later(min(left, _LATEST), self._expire, session, client, expires)


def _address(session: "Session") -> str:
    """The address whose guesses are counted: that of the host, of IPv6 its network; empty for clients of this host."""
    host = session.peer_host()
    try:
        found = ip_address(host)
    except ValueError:
        return ""
    return str(IPv6Address(int(found) >> 64 << 64)) if isinstance(found, IPv6Address) else host
