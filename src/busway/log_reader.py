"""A broker's data folder, for who only reads it: whose it is, and where the records of its streams lie.

A broker may be at work in it. Nothing is written, and nothing is locked.
"""

import json
from pathlib import Path

from busway._core import Log
from busway.errors import DataFailed


def owner(folder: Path) -> str:
    """The guid of the broker that the folder belongs to."""
    file = folder / "broker.json"
    try:
        guid = json.loads(file.read_bytes())["guid"]
    except FileNotFoundError:
        raise DataFailed(f"{folder} is no data folder of a broker: {file.name} is missing") from None
    except OSError as error:
        raise DataFailed(f"{file} can't be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataFailed(f"{file} is damaged: it holds no guid") from error
    return str(guid)


def streams(folder: Path) -> dict[str, Path]:
    """By name, the folders of the logs of all streams on disk."""
    try:
        found = {one.name: one / "log" for one in (folder / "streams").iterdir() if not one.name.startswith(".")}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise DataFailed(f"the streams in {folder} can't be read: {error.strerror}") from error
    return {name: log for name, log in sorted(found.items()) if log.is_dir()}


def view(folder: Path, stream: str) -> Log:
    """What is stored of a stream now."""
    log = folder / "streams" / stream / "log"
    if not log.is_dir():
        raise DataFailed(f"{folder} has no stream {stream!r} on disk; it has {', '.join(streams(folder)) or 'none'}")
    return Log.view(log, name=stream)
