"""`python -m tests.chaos.cluster [ROUNDS] [--seed N] [--partition SECONDS]`: kills and isolates nodes of a cluster, and
reports losses.
"""

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tests.chaos.cluster.network import Unavailable
from tests.chaos.cluster.service import summary
from tests.chaos.cluster.trial import Trial


def report(trial: Trial, seed: int, seconds: float) -> None:
    ledger, waits = trial.ledger, sorted(trial.ledger.waits())
    print(f"{trial.faults} faults and {trial.promotions} promotions in {seconds:.0f} s, seed {seed}")
    print(
        f"{len(ledger.stored)} messages stored and {len(ledger.acked)} acknowledged by consumers; {ledger.again()} came once more, "
        f"{ledger.late} acknowledgements were too late, {len(ledger.unanswered())} were noted without an answer, "
        f"{len(ledger.failed)} publishes failed, {len(ledger.twice())} are stored at two nodes, and of {ledger.doubtful} it was told that they may be"
    )
    print("time without service, for each client and fault:")
    for line in summary(trial.service.outages):
        print(f"  {line}")
    if waits:
        rare = waits[int(len(waits) * 0.999)]
        print(f"from stored to consumed: median {median(waits):.3f} s, 99.9 % {rare:.1f} s, max {waits[-1]:.1f} s")


async def main(rounds: int, seed: int, partition: float, folder: Path) -> bool:
    print(f"{rounds} rounds, seed {seed}, partitions of {partition:g} s", flush=True)
    begin = time.monotonic()
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # as by Ctrl-C: all is removed
    trial = Trial(folder, seed=seed, partition=partition, tell=lambda text: print(text, flush=True))
    try:
        await trial.run(rounds)
    except (AssertionError, TimeoutError) as error:
        print(f"BROKEN (seed {seed}): {error}", flush=True)
        return False
    finally:
        report(trial, seed, time.monotonic() - begin)
    print("nothing acknowledged was lost, nothing was acknowledged twice, and everybody came back by itself")
    return True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.cluster")
    parser.add_argument("rounds", type=int, nargs="?", default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--partition", type=float, default=30.0, help="seconds")
    parser.add_argument("--folder", type=Path, help="keep the data and logs of the nodes here")
    given = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="busway-crash-mesh-") as temporary:
            good = asyncio.run(main(given.rounds, given.seed, given.partition, given.folder or Path(temporary)))
    except Unavailable as missing:
        sys.exit(f"this can't run here: {missing}")
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(130)
    sys.exit(0 if good else 1)
