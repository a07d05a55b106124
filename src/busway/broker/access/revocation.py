"""Revocation: watches the users file, and applies a change to the sessions of this broker.

A session whose user has lost something is closed, with its leases and posts; its client connects again and restores what
is still allowed. All other sessions get their new grants at once.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol

from busway.authority.policy import Policy
from busway.errors import Code

if TYPE_CHECKING:
    from busway.broker.access.authority import Authority
    from busway.broker.runtime import Runtime
    from busway.broker.session import Session

log = logging.getLogger("busway.broker")

CHECK: Final = 0.25
"""Seconds between two checks of the users file."""


class Holdings(Protocol):
    """What clients have at a broker besides their connections: leases of messages, or posts."""

    def left(self, session: "Session") -> None:
        """The client has left for good."""


class Revocation:
    """Applies changes of the users to the sessions of one broker."""

    def __init__(self, runtime: "Runtime", authority: "Authority", holdings: tuple[Holdings, ...]) -> None:
        self._runtime = runtime
        self._authority = authority
        self._holdings = holdings
        self._task: asyncio.Task[None] | None = None
        self.revoked = 0
        """Sessions that were closed because their user has lost something."""

    def start(self) -> None:
        if self._authority.policy is not None:
            self._task = self._runtime.loop.create_task(self._watch(), name="busway users")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def reload(self) -> bool:
        """Read the users file again and apply it. False: it is invalid, and nothing has changed."""
        changed = self._authority.reload()
        if changed is None:
            return False
        self._apply(*changed)
        return True

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(CHECK)
            if self._authority.changed:
                self.reload()

    def _apply(self, old: Policy, new: Policy) -> None:
        for session in list(self._runtime.sessions.values()):
            if not session.user or session.closing:
                continue
            if why := lost(old, new, session.user, session.roles):
                self._revoke(session, why)
            else:
                session.grants = new.grants(session.user, session.roles)
                self._runtime.engine.regrant(session.conn, session.grants)
        self._runtime.flush()

    def _revoke(self, session: "Session", why: str) -> None:
        self.revoked += 1
        log.info("client %d of user %r is closed: %s", session.client, session.user, why)
        for holding in self._holdings:
            holding.left(session)
        session.close(Code.REVOKED, why)


def lost(old: Policy, new: Policy, name: str, roles: tuple[str, ...]) -> str:
    """Why the sessions of a user must end; empty: the user has lost nothing."""
    before, after = old.users.get(name), new.users.get(name)
    if before is not None and after is None:
        return "the user was removed"
    if before is not None and after is not None and before.proofs != after.proofs:
        return "the password, keys or names of the user have changed: log in again"
    if old.tokens != new.tokens and roles:
        return "the settings of tokens have changed: log in again"
    if old.narrowed(new, name, roles):
        return "the grants of the user have changed: connect again"
    return ""
