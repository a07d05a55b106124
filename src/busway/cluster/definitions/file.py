"""The file `cluster.log` in the data folder: the definitions that a node knows."""

from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from busway.broker.storage.keyed_journal import KeyedJournal
from busway.cluster.definitions.definitions import Definition

FILE: Final = "cluster.log"
MAGIC: Final = b"\xc1BWD"


class Noted(msgspec.Struct, frozen=True, array_like=True):
    """An entry of the file."""

    one: Definition
    lacks: str = ""
    """Why the node could not apply the definition."""


DefinitionJournal: TypeAlias = KeyedJournal[str, Noted]


def definition_journal(folder: Path) -> DefinitionJournal:
    """The file of definitions in the data folder."""
    return KeyedJournal(folder / FILE, MAGIC, Noted, lambda noted: noted.one.key, retry=True)
