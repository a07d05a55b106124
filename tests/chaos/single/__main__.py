"""`python -m tests.chaos.single [ROUNDS] [SEED]`: kills a busy broker repeatedly, and reports lost messages."""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.single.harness import Trial
from tests.chaos.single.workers import usual


async def main(rounds: int, seed: int) -> None:
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="busway-crash-") as folder:
        trial = Trial(Path(folder), usual(seed), seed=seed)

        def told(number: int) -> None:
            done = sum(worker.busy for worker in trial.workers)
            end = "\n" if number % 20 == 0 or number == rounds or not sys.stderr.isatty() else "\r"
            seconds = time.monotonic() - begin
            print(f"{number}/{rounds} kills, {done} messages handled, {seconds:.0f} s", end=end, file=sys.stderr)

        await trial.run(rounds, told)
        print(
            f"{trial.broker.kills} kills, {len(trial.stored)} messages stored: none lost, none twice, no sequence left out, "
            "each seen once by those who read, and none handed out by a channel after it was acknowledged",
        )


if __name__ == "__main__":
    arguments = [int(one) for one in sys.argv[1:]]
    asyncio.run(main(*(arguments + [200, 0][len(arguments) :])))
