"""Users files for tests, with passwords whose computation is cheap."""

from collections.abc import Iterable
from pathlib import Path

from busway.authority.passwords import Cost, Verifier

_COST = Cost(b"salt of the tests", 7168, 2, 1)
_known: dict[str, str] = {}


def verifier(password: str) -> str:
    """The verifier of a password."""
    if password not in _known:
        _known[password] = str(Verifier.make(password, _COST))
    return _known[password]


class UsersFile:
    """A users file that tests write and change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tables: dict[str, str] = {}
        self.write()

    def user(
        self,
        name: str,
        allow: Iterable[str] = (),
        deny: Iterable[str] = (),
        *,
        password: str | None = None,
        **more: object,
    ) -> "UsersFile":
        """Add or replace a user, whose password is its name unless another one is given."""
        lines = {
            "password": verifier(name if password is None else password),
            "allow": list(allow),
            "deny": list(deny),
            **more,
        }
        self._tables[f"users.{name}"] = "\n".join(f"{key} = {_toml(value)}" for key, value in lines.items() if value)
        return self.write()

    def role(self, name: str, allow: Iterable[str] = (), deny: Iterable[str] = ()) -> "UsersFile":
        self._tables[f"roles.{name}"] = f"allow = {_toml(list(allow))}\ndeny = {_toml(list(deny))}"
        return self.write()

    def table(self, name: str, content: str) -> "UsersFile":
        self._tables[name] = content
        return self.write()

    def remove(self, name: str) -> "UsersFile":
        del self._tables[f"users.{name}"]
        return self.write()

    def write(self, text: str | None = None) -> "UsersFile":
        """Replace the file by its tables, or by another text."""
        content = text if text is not None else "\n".join(f"[{name}]\n{body}\n" for name, body in self._tables.items())
        new = self.path.with_suffix(".new")
        new.write_text(content)
        new.chmod(0o600)
        new.replace(self.path)
        return self


def _toml(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value) if isinstance(value, int) else "'" + str(value) + "'"
