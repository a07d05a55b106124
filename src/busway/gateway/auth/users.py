"""Users at the HTTP port: who sends a request, by its header `Authorization`, and what that user may do. A driver.

The port asks the same authority as native clients. Basic has user and password, Bearer a token. A password takes tens of
milliseconds to check, so threads do that, a few at a time, and a right one is remembered for a minute.
"""

import asyncio
import base64
import binascii
from collections import OrderedDict
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

from busway.authority.grants import NUMBERS, Verb
from busway.authority.guesses import Guesses
from busway.authority.passwords import Cost, Verifier
from busway.authority.policy import ANONYMOUS, Policy
from busway.authority.tokens import TokenError
from busway.broker.access.authority import Authority
from busway.broker.access.revocation import lost
from busway.common import environment
from busway.gateway.json.statuses import UNAUTHORIZED, Refused

REFUSED: Final = "the credentials were refused"
_VERBS: Final[dict[str, tuple[Verb, ...]]] = {
    "publish": ("store",),
    "subscribe": ("consume",),
    "serve": ("serve",),
    "request": ("request",),
    "manage": ("manage",),
    "look": ("store", "consume", "manage", "observe"),
}
"""For each action of the JSON protocol the verbs of which the user needs one: its queues are streams with channels."""
_AT_ONCE: Final = 2
"""Passwords that are checked at the same time."""
_WAITING: Final = 256
"""Requests that may wait for the check of their password."""
_REMEMBERED: Final = 10_000
_MINUTE: Final = 60.0
_DECOY: Final = Verifier(Cost(b"no such user...."), b"", b"")


class HttpUser:
    """The user of a request or of a WebSocket."""

    def __init__(self, authority: Authority, policy: Policy, name: str, roles: tuple[str, ...] = ()) -> None:
        self._authority = authority
        self._policy = policy
        self.name = name
        self.roles = roles

    def allows(self, action: str, topic: str) -> bool:
        """Whether the user may carry out an action of the JSON protocol on a topic."""
        return any(self.may(verb, topic) for verb in _VERBS[action])

    def may(self, verb: Verb, topic: str) -> bool:
        """Whether the user may use a verb on a topic now."""
        grants = self._authority.grants(self.name, self.roles)
        return grants is not None and grants.may(NUMBERS[verb], topic)

    @property
    def lost(self) -> str:
        """Why the user must log in again, because it has lost something; empty: it need not."""
        current = self._authority.policy
        return "" if current is None else lost(self._policy, current, self.name, self.roles)


class HttpUsers:
    """Finds the users of requests."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority
        self._guesses = Guesses()
        self._known: OrderedDict[bytes, float] = OrderedDict()
        """Hashes of user, password and verifier that were right, and until when that is remembered."""
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0
        self.refused = 0

    async def identify(self, headers: Mapping[str, str], address: str) -> HttpUser | None:
        """The user of a request; None: it does not log in. Raises Refused for wrong credentials."""
        policy = self._authority.policy
        assert policy is not None
        text = headers.get("Authorization")
        if text is None:
            return HttpUser(self._authority, policy, ANONYMOUS) if ANONYMOUS in policy.users else None
        kind, _, value = text.partition(" ")
        if kind.lower() == "bearer":
            return await self._bearer(policy, value.strip(), address)
        if kind.lower() == "basic":
            return await self._basic(policy, value.strip(), address)
        raise self._refusal("the header Authorization must be Basic or Bearer")

    async def _bearer(self, policy: Policy, token: str, address: str) -> HttpUser:
        await self._delay(address, "")
        if self._authority.tokens is None:
            raise self._refusal()
        try:
            bearer = self._authority.tokens.check(token, environment.time_ns() / 1e9)
        except TokenError:
            self._guesses.failed(address, "", environment.monotonic())
            raise self._refusal() from None
        roles = tuple(role for role in bearer.roles if role in policy.roles)
        if bearer.user not in policy.users and not roles:
            raise self._refusal()
        return HttpUser(self._authority, policy, bearer.user, roles)

    async def _basic(self, policy: Policy, value: str, address: str) -> HttpUser:
        try:
            name, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise self._refusal() from None
        user = policy.users.get(name)
        stored = user.password if user is not None else None
        mark = sha256("\0".join((name, password, stored or "")).encode()).digest()
        now = environment.monotonic()
        if self._known.get(mark, 0.0) > now:
            return HttpUser(self._authority, policy, name)
        await self._delay(address, name)
        right = await self._matches(_DECOY if stored is None else Verifier.parse(stored), password)
        if not colon or stored is None or not right:
            self._guesses.failed(address, name, environment.monotonic())
            raise self._refusal()
        self._guesses.passed(address, name)
        self._known[mark] = now + _MINUTE
        self._known.move_to_end(mark)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return HttpUser(self._authority, policy, name)

    async def _matches(self, verifier: Verifier, password: str) -> bool:
        if self._waiting >= _WAITING:
            raise self._refusal("too many requests wait for the check of their password")
        self._waiting += 1
        try:
            async with self._slots:
                return await asyncio.to_thread(verifier.matches, password)
        finally:
            self._waiting -= 1

    async def _delay(self, address: str, user: str) -> None:
        if delay := self._guesses.delay(address, user, environment.monotonic()):
            await asyncio.sleep(delay)

    def _refusal(self, text: str = REFUSED) -> Refused:
        self.refused += 1
        return Refused(UNAUTHORIZED, text)
