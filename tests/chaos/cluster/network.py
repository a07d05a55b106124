"""A network of its own: hosts that are network namespaces on one bridge, and cables that can be cut without anybody noticing.

Nothing has a name that the machine's own network could see. Each namespace lives as long as a process that holds it, and that ends with
this one, however this one ends. A cut is made at the sender: it is given a wrong hardware address of the receiver, so what it sends is
lost on the way, without a reset and without an error, as in a real partition; and one way can be cut alone.
"""

import os
import shutil
import subprocess
from collections.abc import Collection, Iterable, Sequence
from types import TracebackType
from typing import Final, Self

TOOLS: Final = {
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
}
"""Commands, and the packages of Debian that have them."""
_NOBODY: Final = "02:00:00:00:ff:ff"
_LIMIT: Final = 30.0


class Unavailable(Exception):  # noqa: N818, it says what is, not what was done wrong
    """This machine, or this user, can't have such a network."""


def needed() -> str:
    """What is missing here, for people; empty if nothing is."""
    if missing := [name for name in TOOLS if shutil.which(name) is None]:
        packages = " ".join(sorted({TOOLS[name] for name in missing}))
        return f"the commands {', '.join(missing)} are missing: apt-get install {packages}"
    if os.geteuid() != 0:
        return "network namespaces need root: run it as root, or by `unshare --map-root-user --net`"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    return f"no network namespace can be made here: {tried.stderr.strip()}" if tried.returncode else ""


class Network:
    """Hosts by their names, each with one address; used with `with`."""

    def __init__(self, hosts: Sequence[str]) -> None:
        if missing := needed():
            raise Unavailable(missing)
        self.hosts = tuple(hosts)
        self._number = {name: number for number, name in enumerate(hosts, 1)}
        self._holders: dict[str, subprocess.Popen[str]] = {}
        self._cut: set[tuple[str, str]] = set()

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of all; the kernel removes a namespace when its last process has ended."""
        for holder in self._holders.values():
            holder.kill()
        for holder in self._holders.values():
            holder.communicate()
        self._holders.clear()

    def address(self, host: str) -> str:
        return f"10.77.0.{self._number[host]}"

    def command(self, host: str, *arguments: str) -> list[str]:
        """How to run this on that host, in a process that does not outlive the one that starts it."""
        return [*self._inside(host), "setpriv", "--pdeathsig", "KILL", "--", *arguments]

    def cut(self, ways: Iterable[tuple[str, str]]) -> None:
        """Lose what goes from the first to the second of each pair, and nothing else."""
        wanted = set(ways)
        changed, self._cut = wanted ^ self._cut, wanted
        for sender in {sender for sender, _ in changed}:
            receivers = [receiver for one, receiver in changed if one == sender]
            self._ip(sender, [self._neighbour(sender, receiver) for receiver in receivers])

    def heal(self) -> None:
        self.cut(())

    # Building it.

    def _build(self) -> None:
        bridge = "the bridge"
        self._hold(bridge)
        self._ip(bridge, ["link add name bus type bridge", "link set dev bus up"])
        for host in self.hosts:
            pid = self._hold(host)
            port, ours = f"port{self._number[host]}", self._hardware(host)
            self._ip(
                bridge,
                [
                    f"link add name {port} type veth peer name eth0 address {ours} netns {pid}",
                    f"link set dev {port} master bus up",
                ],
            )
            peers = [self._neighbour(host, other) for other in self.hosts if other != host]
            self._ip(
                host,
                ["link set dev lo up", f"address add {self.address(host)}/24 dev eth0", "link set dev eth0 up", *peers],
            )

    def _hold(self, name: str) -> int:
        """A process that has a namespace of its own, until its input ends: its id."""
        command = ["unshare", "--net", "sh", "-c", "echo; exec cat"]
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._holders[name] = holder
        assert holder.stdout is not None
        if not holder.stdout.readline():
            raise Unavailable(f"no network namespace could be made for {name}")
        return holder.pid

    def _neighbour(self, host: str, other: str) -> str:
        hardware = _NOBODY if (host, other) in self._cut else self._hardware(other)
        return f"neighbour replace {self.address(other)} lladdr {hardware} dev eth0 nud permanent"

    def _hardware(self, host: str) -> str:
        return f"02:00:00:00:00:{self._number[host]:02x}"

    def _inside(self, name: str) -> list[str]:
        return ["nsenter", "--target", str(self._holders[name].pid), "--net", "--"]

    def _ip(self, name: str, commands: list[str]) -> None:
        done = subprocess.run(
            [*self._inside(name), "ip", "-batch", "-"],
            input="\n".join(commands) + "\n",
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT,
        )
        if done.returncode:
            raise Unavailable(f"ip, for {name}: {done.stderr.strip()}")


def between(some: Collection[str], others: Collection[str]) -> set[tuple[str, str]]:
    """All ways from some hosts to others, and back."""
    return {way for one in some for other in others for way in ((one, other), (other, one))}
