"""Block audit: checks the order and the times of consecutive messages of a stream, in arrays, without Spark.

The audit calls look() in its tasks.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

KINDS: Final = ("offset", "order", "clock", "early", "late")
"""The kinds of problems of consecutive messages."""
EDGES: Final = ("offset", "sequence", "stored")
"""The values of the first and the last message of a topic, in the order by which they are compared."""
FIGURES: Final = ("count", "first", "last", "worst")
"""The figures of each kind: the number, the first and the last offset, and the largest deviation."""
SCHEMA: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("broker", "stream", "topic")),
        ("block", pa.int64()),
        *((f"{side}_{name}", pa.int64()) for side in ("begin", "end") for name in EDGES),
        *((f"{kind}_{figure}", pa.int64()) for kind in KINDS for figure in FIGURES),
    ]
)
"""The schema of the result of look()."""

_LEAST: Final = np.iinfo(np.int64).min
_MOST: Final = np.iinfo(np.int64).max
Array = Any  # numpy's own type adds little


def look(rows: pa.Table, early: int, late: int) -> pa.Table:
    """Return for each topic and block the first and the last message, and the problems between them.

    Columns are broker, stream, topic and block, and as numbers offset, sequence, stored and time. `early` and `late`
    are the microseconds by which a message may be too early or too late.
    """
    names = ("offset", "sequence", "stored", "time", "block")
    offset, sequence, stored, time, block = (rows.column(name).to_numpy() for name in names)
    stream = _codes(rows, "broker", "stream")
    place = _combined(stream, np.unique(block, return_inverse=True)[1])
    topic = _combined(place, _codes(rows, "topic"))

    order = np.lexsort((stored, sequence, offset, place))
    same = place[order][1:] == place[order][:-1]
    duplicate, step_back = np.zeros(len(order), bool), np.zeros(len(order), np.int64)
    duplicate[order[1:]] = same & (np.diff(offset[order]) == 0)
    step_back[order[1:]] = np.where(same, -np.diff(stored[order]), 0)

    order = order[np.argsort(topic[order], kind="stable")]
    first = np.concatenate(([True], np.diff(topic[order]) != 0))
    starts = np.flatnonzero(first)
    ends = np.append(starts[1:], len(order)) - 1
    down = ~first & np.concatenate(([False], np.diff(sequence[order]) < 0))

    behind = (stored - time)[order]
    wrong = {
        "offset": (duplicate[order], None),
        "order": (down, None),
        "clock": (step_back[order] > 0, step_back[order]),
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


def _figures(bad: Array, deviation: Array | None, offset: Array, starts: Array) -> list[pa.Array]:
    count = np.add.reduceat(bad.astype(np.int64), starts)
    none = count == 0
    worst = (
        np.full(len(starts), _LEAST)
        if deviation is None
        else np.maximum.reduceat(np.where(bad, deviation, _LEAST), starts)
    )
    return [
        pa.array(count),
        pa.array(np.minimum.reduceat(np.where(bad, offset, _MOST), starts), mask=none),
        pa.array(np.maximum.reduceat(np.where(bad, offset, _LEAST), starts), mask=none),
        pa.array(worst, mask=none | (worst == _LEAST)),
    ]


def _codes(rows: pa.Table, *names: str) -> Array:
    """Return a number for each distinct text, or combination of texts."""
    found = np.zeros(rows.num_rows, np.int64)
    for name in names:
        texts = pc.dictionary_encode(rows.column(name).combine_chunks())
        found = _combined(found, texts.indices.to_numpy())
    return found


def _combined(left: Array, right: Array) -> Array:
    """Return a number from 0 for each distinct pair. The numbers stay small, so that they can be combined again."""
    both = left * (np.int64(right.max(initial=0)) + 1) + right
    return both if both.max(initial=0) < 1 << 31 else np.unique(both, return_inverse=True)[1]
