"""A process that appends is killed at any moment: records reported as safe are there once, and no others."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from busway._core import Log
from tests.support.stored import last_sequences, read_all

ROUNDS = 12
CHILD = """
import random, sys
from busway._core import Log
from tests.support.stored import row, wait_safe
folder, safety, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
chance = random.Random(number)
log = Log.open(folder, safety=safety, bucket_bytes=50_000, max_age=0)
while True:
    rows = []
    for _ in range(chance.randrange(1, 40)):
        number += 1
        rows.append(row(chance.choice("abc"), b"%d" % number * chance.randrange(20), session=9, number=number))
    taken = log.append(rows, number)
    assert wait_safe(log) is None
    for given, (offset, sequence) in zip(rows, taken):
        print(given[5], offset, sequence, given[0])
    sys.stdout.flush()
"""


@pytest.mark.parametrize("safety", ["written", "synced"])
def test_kill(tmp_path: Path, safety: str) -> None:
    chance = random.Random(7)
    acknowledged: dict[int, tuple[int, int, str]] = {}
    number = 0
    for _ in range(ROUNDS):
        command = [sys.executable, "-c", CHILD, str(tmp_path), safety, str(number)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as child:
            assert child.stdout
            lines = [child.stdout.readline() for _ in range(chance.randrange(1, 400))]
            child.send_signal(signal.SIGKILL)
            lines += child.stdout.readlines()
        for line in lines:
            # The last line may be cut off, too.
            if line.endswith(b"\n"):
                told, offset, sequence, topic = line.split()
                acknowledged[int(told)] = (int(offset), int(sequence), topic.decode())
        with_log = Log.open(tmp_path, max_age=0)
        found = read_all(with_log)
        assert all(what == "a torn tail" for *_, what in with_log.damage)
        assert [known.offset for known in found] == list(range(len(found)))
        by_number = {known.number: (known.offset, known.sequence, known.topic) for known in found}
        assert len(by_number) == len(found)
        assert acknowledged.items() <= by_number.items()
        for topic in "abc":
            own = [known.sequence for known in found if known.topic == topic]
            assert own == list(range(1, len(own) + 1))
            assert last_sequences(with_log).get(topic, 0) == len(own)
        number = max(by_number)
        with_log.close()
