"""Names of databases: checks the stores that an operator configures as names and URLs. Values only.

Clients, definitions and listings have only the names. A URL may contain a password, so no error of this module shows
one.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from busway.streams import STORES, is_name

_SCHEMES: Final = ("sqlite", "postgresql", "postgres")
_WANTED: Final = "sqlite:///PATH or postgresql://USER@HOST/NAME"


def check_stores(given: Mapping[str, str] | None) -> dict[str, str]:
    """The URL of each store by its name. Raises ValueError or TypeError."""
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"stores must be a dict of names and URLs, not {type(given).__name__}")
    return {_checked_name(name): _checked_url(name, url) for name, url in (given or {}).items()}


def store_of(text: str, environ: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Name and URL of a store given as `NAME=URL`, `NAME=env:VARIABLE` or `NAME=file:PATH`. Raises ValueError."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError("a store is written as NAME=URL, NAME=env:VARIABLE or NAME=file:PATH")
    _checked_name(name)
    kind, _, place = value.partition(":")
    if kind == "env":
        if not (url := environ.get(place, "")):
            raise ValueError(f"the store {name!r} has its URL in the variable {place}, which is not set")
    elif kind == "file":
        try:
            url = Path(place).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise ValueError(
                f"the store {name!r} has its URL in the file {place}, which can't be read: {reason}"
            ) from None
    else:
        url = value
    return name, _checked_url(name, url)


def unknown_store(name: str, stores: Mapping[str, str]) -> str:
    """The error text for a store that this broker does not have."""
    known = ", ".join((*STORES, *stores))
    return f"this broker has no store {name!r} (it has {known}): start it with --store {name}=URL"


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not is_name(name):
        raise ValueError(
            f"{name!r} is no name of a store: 1 to 64 letters, digits, '_', '-' or '.', no '-' or '.' first"
        )
    if name in STORES:
        raise ValueError(f"a store can't be called {name!r}: every broker has {', '.join(STORES)}")
    return name


def _checked_url(name: str, url: Any) -> str:
    if not isinstance(url, str):
        raise TypeError(f"the URL of the store {name!r} must be a str, not {type(url).__name__}")
    scheme, found, _ = url.partition("://")
    if not found or scheme.partition("+")[0] not in _SCHEMES:
        raise ValueError(f"the URL of the store {name!r} is no address of a database: write {_WANTED}")
    return url
