"""Nodes that find each other on the local network by multicast DNS: each announces itself and hears of the others.

A driver over zeroconf, which comes with `busway[mdns]`. What it hears is an address to try, and nothing more: who is there, and whether
it belongs to the cluster, shows as for every other node.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

from busway.cluster.node import MOST_ADDRESSES, Node
from busway.common.extras import install_command
from busway.transport import parse

if TYPE_CHECKING:
    from zeroconf import ServiceStateChange, Zeroconf

log = logging.getLogger("busway.cluster")

TYPE: Final = "_busway._tcp.local."
_ANSWER_MS: Final = 3000
"""Milliseconds in which a node that was heard of has to say where it is."""
_MOST: Final = 64
"""Announcements that are asked about at a time."""
_LONGEST: Final = 200
"""Bytes of an address in an announcement."""


def available() -> None:
    """Raises ImportError that says what to install."""
    try:
        import zeroconf  # noqa: F401, PLC0415 - only for those who want it
    except ImportError as error:
        raise ImportError(f"discovery needs zeroconf: {install_command('mdns')}", name="zeroconf") from error


class Discovery:
    """Announces one node, and tells of addresses of others that say that they are of the same cluster."""

    def __init__(self, me: Node, found: Callable[[str], None], interfaces: Sequence[str] = ()) -> None:
        self._me = me
        self._found = found
        self._interfaces = list(interfaces)
        self._zeroconf: Any = None
        self._browser: Any = None
        self._asking: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Announce and look, from now on; a network that does not allow it is told, and the cluster goes on without."""
        from zeroconf import Error, InterfaceChoice, IPVersion  # noqa: PLC0415
        from zeroconf.asyncio import AsyncServiceBrowser, AsyncZeroconf  # noqa: PLC0415

        try:
            self._zeroconf = AsyncZeroconf(
                interfaces=self._interfaces or InterfaceChoice.Default, ip_version=IPVersion.V4Only
            )
            self._browser = AsyncServiceBrowser(self._zeroconf.zeroconf, TYPE, handlers=[self._heard])
            if (info := self._announcement()) is not None:
                await (await self._zeroconf.async_register_service(info))
        except (OSError, Error, ValueError) as error:
            log.error("cluster %s: discovery does not work: %s", self._me.cluster, error)  # noqa: TRY400 - no bug of ours

    async def stop(self) -> None:
        """Say goodbye."""
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        if self._browser is not None:
            await self._browser.async_cancel()
        if self._zeroconf is not None:
            await self._zeroconf.async_unregister_all_services()
            await self._zeroconf.async_close()
        self._browser = self._zeroconf = None

    def _announcement(self) -> Any:
        """This node as others hear of it: where it is, its cluster and its guid; nothing if others can't come here."""
        from zeroconf.asyncio import AsyncServiceInfo  # noqa: PLC0415

        reachable = [parse(text) for text in self._me.addresses]
        told = [str(one) for one in reachable if one.scheme in {"tcp", "tls"} and len(str(one)) <= _LONGEST]
        if not told:
            log.warning("cluster %s: no address of this node can be announced; it only looks", self._me.cluster)
            return None
        first = parse(told[0])
        addresses = [first.host] if _is_ip(first.host) else []
        said: dict[str | bytes, str | bytes | None] = {"cluster": self._me.cluster[:_LONGEST], "guid": self._me.guid}
        said |= {f"address{number}": text for number, text in enumerate(told)}
        return AsyncServiceInfo(
            TYPE,
            f"{self._me.guid}.{TYPE}",
            port=first.port,
            addresses=[socket.inet_aton(one) for one in addresses if ip_address(one).version == 4],
            server=f"{self._me.guid}.local.",
            properties=said,
        )

    def _heard(self, zeroconf: "Zeroconf", service_type: str, name: str, state_change: "ServiceStateChange") -> None:
        from zeroconf import ServiceStateChange  # noqa: PLC0415

        if state_change is ServiceStateChange.Removed or name.startswith(self._me.guid):
            return
        if len(self._asking) >= _MOST:
            log.debug("too many announcements at a time; %s is left out", name)
            return
        task = asyncio.get_running_loop().create_task(self._ask(zeroconf, service_type, name), name="busway mdns")
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask(self, zeroconf: "Zeroconf", service_type: str, name: str) -> None:
        from zeroconf import Error  # noqa: PLC0415
        from zeroconf.asyncio import AsyncServiceInfo  # noqa: PLC0415

        try:
            info = AsyncServiceInfo(service_type, name)
            if not await info.async_request(zeroconf, _ANSWER_MS):
                return
        except (Error, ValueError, OSError) as error:
            log.debug("%s was announced and says nothing: %s", name, error)
            return
        for address in addresses_of(info.properties, self._me):
            self._found(address)


def addresses_of(said: "dict[bytes, bytes | None]", me: Node) -> list[str]:
    """The addresses in an announcement, if it is one of another node of the same cluster."""
    text = {name.decode("ascii", "replace"): (value or b"").decode("utf-8", "replace") for name, value in said.items()}
    if text.get("cluster") != me.cluster[:_LONGEST] or text.get("guid", "") in {"", me.guid}:
        return []
    found = []
    for number in range(MOST_ADDRESSES):
        try:
            address = parse(text.get(f"address{number}", ""))
        except ValueError:
            continue
        if address.scheme in {"tcp", "tls"} and str(address).isprintable():
            found.append(str(address))
    return found


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
