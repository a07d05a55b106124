"""Keys of the JSON door: loads them from a file or the environment, reloads changed files, and checks requests.

The door's guard calls `Keyring`. A driver over grants.py, signatures.py and replay_guard.py. The file is TOML::

    window = 300                      # seconds; optional, for keys without a window of their own

    [[key]]
    name = "shop"                     # optional, for people
    apiKey = "2ba912a8-…"
    secretKey = "file:shop.secret"    # or the secret itself, or env:VARIABLE
    publish = ["orders/**"]           # topic patterns; the key may use no others
    subscribe = ["orders/*/state"]
    serve = []
    request = ["price"]
    window = 60

The variable BUSWAY_HTTP_KEY_LIST holds the list of keys as JSON: `[{"apiKey": …, "secretKey": …, "publish": […]}, …]`.
"""

import hashlib
import json
import logging
import math
import stat
import tomllib
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Final, Self

import msgspec

from busway.errors import InvalidTopic
from busway.gateway.auth.grants import VERBS, Key
from busway.gateway.auth.replay_guard import MOST, ReplayGuard
from busway.gateway.auth.signatures import control, form_of, verify
from busway.gateway.json.statuses import FORBIDDEN, Refused
from busway.topic import check_pattern

log = logging.getLogger("busway.gateway")

VARIABLE: Final = "BUSWAY_HTTP_KEY_LIST"

_LOOK: Final = 1.0
"""Seconds between two checks for changed files."""
_MILLISECONDS: Final = 1e11
"""A timestamp above this is in milliseconds; in seconds it would be more than three thousand years ahead."""

_Patterns = tuple[str, ...]
_Window = Annotated[float, msgspec.Meta(gt=0, le=86400)]


class KeysError(ValueError):
    """The keys are invalid; the text names the file or variable, the key and the error."""


class _Entry(msgspec.Struct, forbid_unknown_fields=True, rename={"api_key": "apiKey", "secret_key": "secretKey"}):
    api_key: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    secret_key: str | None = None
    name: str = ""
    publish: _Patterns = ()
    subscribe: _Patterns = ()
    serve: _Patterns = ()
    request: _Patterns = ()
    window: _Window | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    key: tuple[dict[str, Any], ...] = ()
    window: _Window | None = None


class Keyring:
    """All keys of a door, with the replay guard of each."""

    def __init__(self, keys: Mapping[str, Key], *, remembered: int = MOST) -> None:
        self._keys = dict(keys)
        self._remembered = remembered
        self._replays: dict[str, ReplayGuard] = {}
        self._source: _Source | None = None
        self._checked = -math.inf

    @classmethod
    def load(cls, path: str | PathLike[str] | None, environ: Mapping[str, str]) -> Self | None:
        """The keys of a file and of the environment; None if there are neither. Raises KeysError."""
        if path is None and not environ.get(VARIABLE):
            return None
        source = _Source(path, environ)
        keyring = cls(source.read())
        keyring._source = source
        return keyring

    def __len__(self) -> int:
        return len(self._keys)

    def check(self, request: Mapping[str, Any], now: float, *, raw: bytes | str | None = None) -> Key:
        """The key that signed a request. Raises Refused.

        `now` is in seconds since 1970; `raw` is the JSON text of the request as received, if it had one.
        """
        self._reload(now)
        fields = control(request)
        if not (api_key := fields.get("apiKey")):
            raise Refused(FORBIDDEN, "missing apiKey in request")
        if not (signature := fields.get("signature")):
            raise Refused(FORBIDDEN, "missing signature in request")
        key = self._keys.get(api_key) if isinstance(api_key, str) else None
        if key is None:
            raise Refused(FORBIDDEN, "apiKey not exists")
        if not key.secret:
            raise Refused(FORBIDDEN, "secretKey not exists")
        if not verify(request, key.secret, raw=raw):
            raise Refused(FORBIDDEN, "signature mismatched" if form_of(request) == "headers" else "signature unmatched")
        if key.window is not None:
            self._check_replay(key, key.window, fields, signature.lower(), now)
        return key

    def _check_replay(self, key: Key, window: float, fields: Mapping[str, Any], signature: str, now: float) -> None:
        """Refuse old and repeated requests. The signature, which covers the whole request, identifies it."""
        if (timestamp := _seconds(fields.get("timestamp"))) is None:
            raise Refused(FORBIDDEN, "missing timestamp in request")
        replays = self._replays.get(key.api_key)
        if replays is None or replays.window != window:
            replays = self._replays[key.api_key] = ReplayGuard(window, most=self._remembered)
        mark = hashlib.sha256(signature.encode()).digest()[:16]
        match replays.look(mark, timestamp, now):
            case "late":
                raise Refused(FORBIDDEN, "timestamp out of window")
            case "again":
                raise Refused(FORBIDDEN, "request was sent before")

    def _reload(self, now: float) -> None:
        """Read the keys again if one of their files has changed. Invalid keys change nothing."""
        if self._source is None or 0 <= now - self._checked < _LOOK:
            return
        self._checked = now
        if not self._source.changed():
            return
        try:
            keys = self._source.read()
        except KeysError as error:
            log.error("the changed keys are invalid, so the old ones stay: %s", error)  # noqa: TRY400 - text suffices
            return
        self._keys = keys
        self._replays = {api_key: replays for api_key, replays in self._replays.items() if api_key in keys}
        log.info("reloaded %d keys", len(keys))


class _Source:
    """The file and the variable with keys, and the state of every file that was read."""

    def __init__(self, path: str | PathLike[str] | None, environ: Mapping[str, str]) -> None:
        self._path = None if path is None else Path(path)
        self._environ = environ
        self._files: dict[Path, tuple[int, ...] | None] = {}

    def changed(self) -> bool:
        return any(_mark(path) != mark for path, mark in self._files.items())

    def read(self) -> dict[str, Key]:
        files, self._files = self._files, {}
        try:
            return self._read()
        finally:
            # The files of the last attempt stay known, so that changed() notices a corrected file.
            self._files = {**{path: _mark(path) for path in files}, **self._files}

    def _read(self) -> dict[str, Key]:
        found: dict[str, Key] = {}
        if self._path is not None:
            try:
                file = msgspec.convert(tomllib.loads(self._text(self._path, f"{self._path}")), _File)
            except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
                raise KeysError(f"{self._path}: {error}") from error
            self._add(found, file.key, str(self._path), self._path.parent, file.window)
        if listed := self._environ.get(VARIABLE):
            try:
                entries = msgspec.convert(json.loads(listed), tuple[dict[str, Any], ...])
            except (ValueError, RecursionError) as error:
                raise KeysError(f"{VARIABLE}: {error}") from error
            self._add(found, entries, VARIABLE, Path(), None)
        return found

    def _add(
        self,
        found: dict[str, Key],
        entries: tuple[dict[str, Any], ...],
        source: str,
        folder: Path,
        window: float | None,
    ) -> None:
        for number, raw in enumerate(entries):
            name = raw.get("name") or raw.get("apiKey")
            where = f"{source}, key {number + 1}" + (f" ({name})" if isinstance(name, str) else "")
            try:
                entry = msgspec.convert(raw, _Entry)
            except msgspec.ValidationError as error:
                raise KeysError(f"{where}: {error}") from error
            if entry.api_key in found:
                raise KeysError(f"{where}: another key has the same apiKey")
            granted: dict[str, tuple[str, ...]] = {}
            for verb in VERBS:
                try:
                    granted[verb] = tuple(check_pattern(pattern) for pattern in getattr(entry, verb))
                except InvalidTopic as error:
                    raise KeysError(f"{where}: {verb}: {error}") from error
            found[entry.api_key] = Key(
                entry.api_key,
                self._secret(entry.secret_key, where, folder),
                entry.name,
                **granted,
                window=window if entry.window is None else entry.window,
            )

    def _secret(self, setting: str | None, where: str, folder: Path) -> str | None:
        if setting is None:
            return None
        kind, _, rest = setting.partition(":")
        if kind == "env":
            if not (secret := self._environ.get(rest)):
                raise KeysError(f"{where}: secretKey: the variable {rest} is not set")
        elif kind == "file":
            secret = self._text(folder / rest, f"{where}: secretKey: {folder / rest}").strip("\r\n")
        else:
            secret = setting
        if not secret:
            raise KeysError(f"{where}: secretKey is empty")
        return secret

    def _text(self, path: Path, subject: str) -> str:
        self._files[path] = mark = _mark(path)
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise KeysError(f"{subject} can't be read: {error}") from error
        if mark is not None and mark[-1] & (stat.S_IROTH | stat.S_IWOTH):
            log.warning("every user of this host can access the secrets in %s: use chmod o=", path)
        return text


def _mark(path: Path) -> tuple[int, ...] | None:
    """Values that change when a file changes, the last of them its mode; None if the file does not exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode


def _seconds(timestamp: object) -> float | None:
    """Seconds since 1970 of a timestamp in seconds or milliseconds, a number or a text; None if it is invalid."""
    if isinstance(timestamp, bool) or not isinstance(timestamp, int | float | str):
        return None
    try:
        number = float(timestamp)
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(number):
        return None
    return number / 1000 if abs(number) > _MILLISECONDS else number
