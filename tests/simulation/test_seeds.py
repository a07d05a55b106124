"""Seeds: brokers and clients keep their promises in all of them, each runs the same way again, and a broken promise is found."""

import gc
import os
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import busway
from busway.broker.channels.progress_log import ProgressLog
from busway.broker.clock import Clock
from busway.broker.retained.driver import RetainedDriver
from busway.broker.session import Session
from busway.client.channels.channel import Channel
from busway.client.connection.connection import Connection
from busway.client.connection.registration import Registrant
from busway.client.durable.publisher import DurablePublisher
from busway.client.reclaim import Reclaim
from busway.client.subscriptions.read_positions import ReadPositions
from busway.cluster.members.dialer import Dialer
from busway.cluster.members.membership import Membership
from busway.cluster.mesh import Mesh
from busway.cluster.promotion.owners import Owners
from busway.cluster.promotion.promotion import Promotion
from busway.cluster.replicated_map import ReplicatedMap
from busway.cluster.replication.messages import Word
from busway.cluster.replication.mirrored_logs import MirroredProgress
from busway.cluster.replication.primary import Primary, Sending
from busway.cluster.retained.replica import RetainedReplica
from busway.cluster.streams.provider import StreamProvider
from busway.cluster.streams.remote import RemoteStreams
from busway.common import environment
from busway.errors import BusError
from busway.testing.simulation.disk import Disk
from busway.testing.simulation.world import World
from tests.simulation import KINDS, Report, simulate
from tests.simulation.faults.plan import CLUSTER, OVERTHROWN, REPLACED
from tests.simulation.runs.cluster import LATE, MIRRORS, SKEW, UNEVEN

SEEDS = 50
CLUSTERS = 100
AT_ONCE = 10


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_promises_are_kept(first: int) -> None:
    reports = [simulate(seed, nodes=1) for seed in range(first, first + AT_ONCE)]
    failed = [str(report) for report in reports if not report.ok]
    assert not failed, "\n".join(failed)
    assert all(report.messages > 20 for report in reports)
    assert sum(report.stored for report in reports) > 200


@pytest.mark.parametrize("first", range(0, CLUSTERS, AT_ONCE))
def test_clusters_keep_them_too(first: int) -> None:
    reports = [simulate(seed, nodes=3 + seed % 5) for seed in range(first, first + AT_ONCE)]
    failed = [str(report) for report in reports if not report.ok]
    assert not failed, "\n".join(failed)
    assert [report.nodes for report in reports] == [3, 4, 5, 6, 7] * (AT_ONCE // 5)
    assert sum(report.messages for report in reports) > 200
    assert sum(report.stored for report in reports) > 20


def test_every_kind_of_fault_happens() -> None:
    """One at a time, so that each is known to take effect and to be survived by itself."""
    happened: Counter[str] = Counter()
    for kind in KINDS:
        for seed in range(20):
            report = simulate(seed, nodes=3 if kind in CLUSTER else 1, kinds=[kind], faults=4, steps=25)
            assert report.ok, str(report)
            happened += report.faults
            if happened[kind]:
                break
    assert set(happened) >= set(KINDS)


def test_what_is_so_from_the_beginning_is_counted_too() -> None:
    happened: Counter[str] = Counter()
    for seed in range(20):
        happened += simulate(seed, nodes=3, faults=0, steps=1, clients=1).faults
    assert set(happened) == {LATE, SKEW, UNEVEN, MIRRORS}


@pytest.mark.parametrize("nodes", [1, 4])
def test_the_same_seed_is_the_same_run(nodes: int) -> None:
    first, again = simulate(3, nodes=nodes), simulate(3, nodes=nodes, lines=True)
    assert first.hash == again.hash
    assert (first.messages, first.turns, first.faults) == (again.messages, again.turns, again.faults)
    assert again.lines
    assert simulate(4, nodes=nodes).hash != first.hash


def test_the_seed_says_how_many_nodes_there_are() -> None:
    assert {simulate(seed, faults=0, steps=1, clients=1).nodes for seed in range(40)} == {1, 3, 4, 5, 6, 7}


def test_the_seed_chooses_among_numbers_of_nodes() -> None:
    some = [simulate(seed, nodes=range(3, 8), faults=0, steps=1, clients=1) for seed in range(20)]
    assert {report.nodes for report in some} == {3, 4, 5, 6, 7}
    drawn = [simulate(seed, faults=0, steps=1, clients=1) for seed in range(20)]
    same = [(one.hash, two.hash) for one, two in zip(some, drawn, strict=True) if two.nodes > 1]
    assert len(same) > 5
    assert all(one == two for one, two in same), "what the seed says anyway stays"


def test_also_in_another_process() -> None:
    """Whatever the order of its sets of text is, and whatever ran there before."""
    program = "import sys; from tests.simulation import simulate; print([simulate(int(seed), nodes=1 + int(seed) % 6).hash for seed in sys.argv[1:]][-6:])"

    def hashes(order: str, *before: str) -> str:
        command = [sys.executable, "-c", program, *before, *map(str, range(6))]
        return subprocess.run(
            command, env=os.environ | {"PYTHONHASHSEED": order}, capture_output=True, text=True, check=True, timeout=50
        ).stdout

    first = hashes("1")
    assert len(first) > 6 * 32
    assert hashes("4242", "17", "18") == first


def nothing(*_: Any, **__: Any) -> None:
    return None


def lie(self: Disk, *, power: bool, honest: Any = Disk.died) -> None:
    """What was only written is lost with the process, as if it had been in the process."""
    honest(self, power=True)


def forgive(self: RetainedReplica, now: float) -> list[Any]:
    """The posts of a node that is gone are not withdrawn."""
    self._lost.clear()
    return []


BROKEN: dict[str, tuple[Any, str, Any, list[str], str]] = {
    "durable publishes are not sent again": (
        DurablePublisher,
        "_send_again",
        nothing,
        ["reset", "broker killed"],
        "are not done",
    ),
    "posts outlive their clients": (RetainedDriver, "lost", nothing, ["client killed"], "is still there"),
    "a channel forgets what is done": (
        ProgressLog,
        "_append",
        lambda self, topic, *records: (self._log.next, 0),
        ["broker killed"],
        "had acknowledged it",
    ),
    "what is stored is lost": (Disk, "died", lie, ["broker killed"], "acknowledged and lost"),
    "what was read is read again": (ReadPositions, "resume", lambda self, _: self._since, ["reset"], "too many"),
    "a dead connection is not noticed": (Connection, "_on_beat", nothing, ["half-open client"], "are not done"),
    "a lost connection is not forgotten": (Session, "_leave", nothing, ["reset"], "connections, and there are"),
    "copies of what is done are handed out": (
        Channel,
        "_drop_duplicates",
        nothing,
        ["reset", "broker killed"],
        "had acknowledged it",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_promise_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find(BROKEN[what], 1, monkeypatch)


def find(
    broken: tuple[Any, str, Any, list[str], str],
    nodes: int,
    monkeypatch: pytest.MonkeyPatch,
    *,
    first: int = 0,
    faults: int = 8,
) -> None:
    where, name, instead, kinds, told = broken
    monkeypatch.setattr(where, name, instead)
    reports: list[Report] = []
    for seed in range(first, first + 100):
        reports.append(simulate(seed, nodes=nodes, kinds=kinds, faults=faults))
        if any(told in problem for problem in reports[-1].problems):
            break
    else:
        pytest.fail(f"not found: {[report.problems for report in reports if not report.ok]}")
    found = reports[-1]
    assert f"seed {found.seed}: FAILED" in str(found)
    again = simulate(found.seed, nodes=nodes, kinds=kinds, faults=faults)
    assert again.problems == found.problems, "it fails the same way again"


def pass_on(self: Mesh, addresses: tuple[str, ...], honest: Any = Mesh.start) -> None:
    """What came from another node is sent to the others again; by each node once, or it would never end."""
    honest(self, addresses)
    self._hub.loop.create_task(relay(addresses[0]), name="relay")


async def relay(url: str) -> None:
    seen: set[str] = set()
    with suppress(BusError):
        async with busway.connect(url, learn=False) as bus, bus.subscribe("live/**", scope="remote") as messages:
            async for message in messages:
                if message.text not in seen:
                    seen.add(message.text)
                    await bus.publish(message.topic, message.payload)


def give_up(self: Reclaim, connection: Any, part: Registrant, error: BusError) -> None:
    """A service that is taken elsewhere is given up at once, even if it is taken by the client's own last connection."""
    self._give_up(part, error)


def forget_all(self: ReplicatedMap[Any, Any], _: int) -> None:
    """A map that does not remember what was removed."""
    for key in self._removed:
        del self._known[key]
    self._removed.clear()


class Trusting:
    """A hub, or its engine, that is never told that more may be stored elsewhere than it has heard of."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        if name == "engine":
            return Trusting(self._real.engine)
        return nothing if name == "remote_behind" else getattr(self._real, name)


def trust(self: RemoteStreams, hub: Any, *others: Any, honest: Any = RemoteStreams.__init__) -> None:
    """Who reads what is stored at another node does not look what came while there was no link."""
    honest(self, Trusting(hub), *others)


AMONG_NODES: dict[str, tuple[Any, str, Any, list[str], str]] = {
    "a lost link is not made anew": (Dialer, "lost", nothing, ["link reset"], "has no link to"),
    "nodes believe nobody": (Membership, "heard", nothing, ["broker killed"], "has no link to"),
    "a dead link is not noticed": (Clock, "_on_beat", Clock.start, ["link half-open"], "has no link to"),
    "posts of a node that is gone stay": (
        RetainedReplica,
        "expire",
        forgive,
        ["broker killed", "client killed"],
        "is still there",
    ),
    "what is told after a loss is not told": (RetainedReplica, "mine", lambda *_: iter(()), ["link reset"], "at b"),
    "pins come back": (ReplicatedMap, "tidy", forget_all, ["broker killed"], "the pin at"),
    "what was passed on is passed on again": (Mesh, "start", pass_on, ["link reset"], "got messages so often"),
    "what was stored without a link is missed": (
        RemoteStreams,
        "__init__",
        trust,
        ["link blocked", "split"],
        "unread stays",
    ),
    "a client does not wait for its service": (
        Reclaim,
        "refused",
        give_up,
        ["half-open broker"],
        "was refused after",
    ),
}


def forget_end(self: Primary, sending: Sending, *, same: bool) -> Word | None:
    """What a node has lost, and its mirror has, is not asked for: the node's word counts."""
    return self.offer(sending.name, sending.config, sending.log, None)


def take_for_sent(self: Primary) -> None:
    """Nothing is sent to the mirror, and what would have been is taken for something that it has."""
    for sending in self.logs.values():
        sending.sent = sending.have = sending.log.written


WITH_MIRRORS: dict[str, tuple[Any, str, Any, list[str], str]] = {
    "what is acknowledged is not at the mirror": (
        Primary,
        "part",
        take_for_sent,
        ["mirrored node lost"],
        "acknowledged and lost",
    ),
    "a copy is told to nobody": (StreamProvider, "copied", nothing, ["mirrored node lost"], "acknowledged and lost"),
    "a lost end stays lost": (
        Primary,
        "_checked",
        forget_end,
        ["mirrored node without power"],
        "acknowledged and lost",
    ),
    "a promotion has the same epoch": (
        Owners,
        "next_epoch",
        lambda self, guid: self.get(guid).epoch,
        [REPLACED],
        "own the streams of",
    ),
    "a replaced node goes on": (Promotion, "_step_down", nothing, [OVERTHROWN], "own the streams of"),
    "an acknowledgement does not wait for the mirror": (
        MirroredProgress,
        "confirm",
        lambda self, _: self._progress.confirm(None),
        [OVERTHROWN],
        "is acknowledged under the epoch 1",
    ),
    "copies stay behind": (Primary, "part", nothing, ["link reset"], "of which 0 are the same"),
}


@pytest.mark.parametrize("what", WITH_MIRRORS)
def test_a_broken_promise_of_mirrors_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find(WITH_MIRRORS[what], 3, monkeypatch, faults=1)


RARE: dict[str, dict[str, int]] = {
    "a dead link is not noticed": {"nodes": 4, "first": 240, "faults": 16},
    "pins come back": {"nodes": 3, "first": 60, "faults": 16},
}
"""Where those begin that few seeds find, with more faults than usual."""


@pytest.mark.parametrize("what", AMONG_NODES)
def test_a_broken_promise_of_nodes_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find(AMONG_NODES[what], monkeypatch=monkeypatch, **({"nodes": 3} | RARE.get(what, {})))


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown faults \['flood'\]; the faults are cut, reset"):
        simulate(0, kinds=["flood"])
    with pytest.raises(ValueError, match="at least 1"):
        simulate(0, clients=0)
    with pytest.raises(ValueError, match="at least 1"):
        simulate(0, nodes=0)
    with pytest.raises(ValueError, match="at least 1"):
        simulate(0, nodes=[])


def handles() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_world_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []
    made = tempfile.mkdtemp

    def remembered(**how: Any) -> str:
        folders.append(Path(made(**how)))
        return str(folders[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", remembered)
    before = {name: getattr(environment, name) for name in vars(environment) if not name.startswith("_")}
    simulate(0, nodes=3)
    open_before = handles() if Path("/proc/self/fd").is_dir() else 0
    for seed in range(1, 8):
        simulate(seed, nodes=1 + seed % 4, kinds=["broker killed", "client killed"], faults=4)
    assert {name: getattr(environment, name) for name in before} == before
    assert gc.isenabled()
    assert len(folders) == 8
    assert not any(folder.exists() for folder in folders)
    if open_before:
        assert handles() <= open_before


def test_there_is_one_world_at_a_time() -> None:
    with World("a test"), pytest.raises(RuntimeError, match="one simulated world at a time"):
        simulate(0)
