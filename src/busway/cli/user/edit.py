"""Edits a users file: keeps its comments and order, checks the result, and replaces the file at once with mode 0600."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tomlkit
import tomlkit.exceptions
from tomlkit.container import Container
from tomlkit.items import Table

from busway.authority.policy import check_user
from busway.authority.users_file import UsersError, parse_users


class UsersEdit:
    """A users file that is changed. save() writes it."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        try:
            text = self._path.read_text("utf-8") if self._path.exists() else ""
            self._document = tomlkit.parse(text)
        except (OSError, UnicodeDecodeError, tomlkit.exceptions.TOMLKitError) as error:
            raise UsersError(f"{self._path}: {error}") from error

    @property
    def names(self) -> list[str]:
        """The names of all users, in the order of the file."""
        return list(self._document.get("users", {}))

    def add(self, name: str) -> Any:
        """Add a user. Returns its table. Raises UsersError if it exists."""
        check_user(name)
        if "users" not in self._document:
            self._document["users"] = tomlkit.table(is_super_table=True)
        users: Any = self._document["users"]
        if name in users:
            raise UsersError(f"{self._path}: there is a user {name!r} already")
        users[name] = tomlkit.table()
        return users[name]

    def user(self, name: str) -> Any:
        """The table of a user. Raises UsersError if there is none."""
        users: Any = self._document.get("users", {})
        if name not in users:
            raise UsersError(f"{self._path}: there is no user {name!r}; `busway user add {name}` adds one")
        return users[name]

    def remove(self, name: str) -> None:
        self.user(name)
        users: Any = self._document["users"]
        users.remove(name)

    def save(self) -> None:
        """Check the content and replace the file. Raises UsersError, and changes nothing then."""
        data = tomlkit.dumps(self._document).encode()
        parse_users(data, self._path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")  # with mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(self._path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def listed(texts: Iterable[str | int]) -> Any:
    """A list for a table, with one text on each line."""
    array = tomlkit.array()
    array.extend(texts)
    return array.multiline(len(array) > 1)


def append(table: Table | Container, key: str, value: str) -> None:
    """Add a text to a list in a table."""
    table[key] = listed([*table.get(key, ()), value])
