"""The authority of a broker: the current policy, reloaded when the users file has changed. All doors ask it.

The server makes it. A file with an error changes nothing; the error is logged with its line.
"""

import logging
import stat
from pathlib import Path

from busway._core import Grants
from busway.authority.policy import Policy
from busway.authority.tokens import TokenVerifier
from busway.authority.users_file import UsersError, read_users

log = logging.getLogger("busway.broker")

_Mark = tuple[int, ...] | None


class Authority:
    """The users of a broker. Without a users file `policy` is None, and every client may do everything."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.policy: Policy | None = None
        self.tokens: TokenVerifier | None = None
        self.reloads = 0
        self.failed_reloads = 0
        self._marks: dict[Path, _Mark] = {}
        if path is not None:
            self.policy, self.tokens = self._read(path)

    def grants(self, user: str, roles: tuple[str, ...] = ()) -> Grants | None:
        """The grants of a user; None without users."""
        return None if self.policy is None else self.policy.grants(user, roles)

    @property
    def changed(self) -> bool:
        """Whether one of the files has changed since it was read."""
        return any(_mark(path) != mark for path, mark in self._marks.items())

    def reload(self) -> tuple[Policy, Policy] | None:
        """Read the files again. Returns the old and the new policy; None: they are invalid, and the old ones stay."""
        if self._path is None or self.policy is None:
            return None
        old = self.policy
        try:
            self.policy, self.tokens = self._read(self._path)
        except UsersError as error:
            self.failed_reloads += 1
            log.error("the changed users are invalid, so the old ones stay: %s", error)  # noqa: TRY400 - text suffices
            return None
        self.reloads += 1
        log.info("reloaded %d users and %d roles", len(self.policy.users), len(self.policy.roles))
        return old, self.policy

    def _read(self, path: Path) -> tuple[Policy, TokenVerifier | None]:
        # The marks are taken first: a change while the file is read is noticed at the next check.
        self._marks = {path: _mark(path)}
        policy = read_users(path)
        if (mode := _mode(path)) & (stat.S_IWGRP | stat.S_IROTH | stat.S_IWOTH):
            log.warning("other users of this host can access %s (mode %03o): use chmod 600", path, mode & 0o777)
        if policy.tokens is None:
            return policy, None
        self._marks[policy.tokens.jwks] = _mark(policy.tokens.jwks)
        try:
            return policy, TokenVerifier(policy.tokens)
        except ValueError as error:
            raise UsersError(str(error)) from error


def _mark(path: Path) -> _Mark:
    """Values that change when a file changes; None if it does not exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except OSError:
        return 0
