"""Discovery of nodes on the local network by multicast DNS: announces this node and finds others.

`links` owns it. It uses zeroconf from `busway[mdns]`. A found address is only a hint to dial. The node there must prove
its identity and its cluster like any other.
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
"""Milliseconds in which an announced node must send its addresses."""
_MOST: Final = 64
"""Announcements that are queried at a time."""
_LONGEST: Final = 200
"""Bytes of an address in an announcement."""


def available() -> None:
    """Raises ImportError with the install command if zeroconf is missing."""
    try:
        import zeroconf  # noqa: F401, PLC0415 - optional
    except ImportError as error:
        raise ImportError(f"discovery needs zeroconf: {install_command('mdns')}", name="zeroconf") from error


class Discovery:
    """Announces one node, and passes the addresses of announced nodes of the same cluster to `found`."""

    def __init__(self, me: Node, found: Callable[[str], None], interfaces: Sequence[str] = ()) -> None:
        self._me = me
        self._found = found
        self._interfaces = list(interfaces)
        self._zeroconf: Any = None
        self._browser: Any = None
        self._queries: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start to announce and to browse. If the network does not allow it, an error is logged."""
        from zeroconf import Error, InterfaceChoice, IPVersion  # noqa: PLC0415
        from zeroconf.asyncio import AsyncServiceBrowser, AsyncZeroconf  # noqa: PLC0415

        try:
            self._zeroconf = AsyncZeroconf(
                interfaces=self._interfaces or InterfaceChoice.Default, ip_version=IPVersion.V4Only
            )
            self._browser = AsyncServiceBrowser(self._zeroconf.zeroconf, TYPE, handlers=[self._announced])
            if (info := self._announcement()) is not None:
                await (await self._zeroconf.async_register_service(info))
        except (OSError, Error, ValueError) as error:
            log.error("cluster %s: discovery does not work: %s", self._me.cluster, error)  # noqa: TRY400, no traceback

    async def stop(self) -> None:
        """Withdraw the announcement and stop."""
        for task in self._queries:
            task.cancel()
        await asyncio.gather(*self._queries, return_exceptions=True)
        if self._browser is not None:
            await self._browser.async_cancel()
        if self._zeroconf is not None:
            await self._zeroconf.async_unregister_all_services()
            await self._zeroconf.async_close()
        self._browser = self._zeroconf = None

    def _announcement(self) -> Any:
        """The announcement of this node: addresses, cluster and guid; None if other hosts can't reach it."""
        from zeroconf.asyncio import AsyncServiceInfo  # noqa: PLC0415

        reachable = [parse(text) for text in self._me.addresses]
        urls = [str(url) for url in reachable if url.scheme in {"tcp", "tls"} and len(str(url)) <= _LONGEST]
        if not urls:
            log.warning("cluster %s: no address of this node can be announced; it only finds others", self._me.cluster)
            return None
        first = parse(urls[0])
        addresses = [first.host] if _is_ip(first.host) else []
        properties: dict[str | bytes, str | bytes | None] = {
            "cluster": self._me.cluster[:_LONGEST],
            "guid": self._me.guid,
        }
        properties |= {f"address{number}": text for number, text in enumerate(urls)}
        return AsyncServiceInfo(
            TYPE,
            f"{self._me.guid}.{TYPE}",
            port=first.port,
            addresses=[socket.inet_aton(text) for text in addresses if ip_address(text).version == 4],
            server=f"{self._me.guid}.local.",
            properties=properties,
        )

    def _announced(
        self, zeroconf: "Zeroconf", service_type: str, name: str, state_change: "ServiceStateChange"
    ) -> None:
        from zeroconf import ServiceStateChange  # noqa: PLC0415

        if state_change is ServiceStateChange.Removed or name.startswith(self._me.guid):
            return
        if len(self._queries) >= _MOST:
            log.debug("too many announcements at a time; ignoring %s", name)
            return
        task = asyncio.get_running_loop().create_task(self._query(zeroconf, service_type, name), name="busway mdns")
        self._queries.add(task)
        task.add_done_callback(self._queries.discard)

    async def _query(self, zeroconf: "Zeroconf", service_type: str, name: str) -> None:
        from zeroconf import Error  # noqa: PLC0415
        from zeroconf.asyncio import AsyncServiceInfo  # noqa: PLC0415

        try:
            info = AsyncServiceInfo(service_type, name)
            if not await info.async_request(zeroconf, _ANSWER_MS):
                return
        except (Error, ValueError, OSError) as error:
            log.debug("%s was announced but does not answer: %s", name, error)
            return
        for address in addresses_of(info.properties, self._me):
            self._found(address)


def addresses_of(properties: "dict[bytes, bytes | None]", me: Node) -> list[str]:
    """The addresses in an announcement of another node of the same cluster; otherwise none."""
    text = {
        name.decode("ascii", "replace"): (value or b"").decode("utf-8", "replace") for name, value in properties.items()
    }
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
