"""Messages of a stream that follow each other, looked at together: is their order right, and are their times. In arrays; no Spark."""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

KINDS: Final = ("offset", "order", "clock", "early", "late")
"""What can be wrong with messages beside each other."""
EDGES: Final = ("offset", "sequence", "stored")
"""What is told of the first and the last message of a topic; it is also their order."""
FIGURES: Final = ("count", "first", "last", "worst")
"""What is told of each kind: how many, the first and the last offset, and how much at worst."""
SCHEMA: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("broker", "stream", "topic")),
        ("block", pa.int64()),
        *((f"{side}_{name}", pa.int64()) for side in ("begin", "end") for name in EDGES),
        *((f"{kind}_{figure}", pa.int64()) for kind in KINDS for figure in FIGURES),
    ]
)
"""Of what look() gives."""

_LEAST: Final = np.iinfo(np.int64).min
_MOST: Final = np.iinfo(np.int64).max
Array = Any  # an array of numpy, whose types say little more


def look(rows: pa.Table, early: int, late: int) -> pa.Table:
    """Of each topic in these blocks: its first and last message, and what is wrong between them.

    Columns are broker, stream, topic and block, and as numbers offset, sequence, stored and time. `early` and `late` are the
    microseconds by which a message may be too early or too late.
    """
    names = ("offset", "sequence", "stored", "time", "block")
    offset, sequence, stored, time, block = (rows.column(name).to_numpy() for name in names)
    stream = _codes(rows, "broker", "stream")
    place = _combined(stream, np.unique(block, return_inverse=True)[1])
    topic = _combined(place, _codes(rows, "topic"))

    order = np.lexsort((stored, sequence, offset, place))
    same = place[order][1:] == place[order][:-1]
    twice, back = np.zeros(len(order), bool), np.zeros(len(order), np.int64)
    twice[order[1:]] = same & (np.diff(offset[order]) == 0)
    back[order[1:]] = np.where(same, -np.diff(stored[order]), 0)

    order = order[np.argsort(topic[order], kind="stable")]
    first = np.concatenate(([True], np.diff(topic[order]) != 0))
    starts = np.flatnonzero(first)
    ends = np.append(starts[1:], len(order)) - 1
    down = ~first & np.concatenate(([False], np.diff(sequence[order]) < 0))

    behind = (stored - time)[order]
    wrong = {
        "offset": (twice[order], None),
        "order": (down, None),
        "clock": (back[order] > 0, back[order]),
        "early": (-behind > early, -behind),
        "late": (behind > late, behind),
    }
    values = {"offset": offset[order], "sequence": sequence[order], "stored": stored[order]}
    named = rows.select(["broker", "stream", "topic", "block"]).take(pa.array(order[starts]))
    columns = named.combine_chunks().columns
    columns += [pa.array(values[name][at]) for at in (starts, ends) for name in EDGES]
    for kind in KINDS:
        columns += _figures(*wrong[kind], values["offset"], starts)
    return pa.table(columns, schema=SCHEMA)


def _figures(bad: Array, much: Array | None, offset: Array, starts: Array) -> list[pa.Array]:
    count = np.add.reduceat(bad.astype(np.int64), starts)
    none = count == 0
    worst = np.full(len(starts), _LEAST) if much is None else np.maximum.reduceat(np.where(bad, much, _LEAST), starts)
    return [
        pa.array(count),
        pa.array(np.minimum.reduceat(np.where(bad, offset, _MOST), starts), mask=none),
        pa.array(np.maximum.reduceat(np.where(bad, offset, _LEAST), starts), mask=none),
        pa.array(worst, mask=none | (worst == _LEAST)),
    ]


def _codes(rows: pa.Table, *names: str) -> Array:
    """A number for each different text, or pair of texts."""
    found = np.zeros(rows.num_rows, np.int64)
    for name in names:
        texts = pc.dictionary_encode(rows.column(name).combine_chunks())
        found = _combined(found, texts.indices.to_numpy())
    return found


def _combined(one: Array, other: Array) -> Array:
    """A number for each different pair of numbers from 0 on; small ones, so that they can be combined further."""
    both = one * (np.int64(other.max(initial=0)) + 1) + other
    return both if both.max(initial=0) < 1 << 31 else np.unique(both, return_inverse=True)[1]
