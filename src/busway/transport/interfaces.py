"""Finds the addresses of this host's interfaces; brokers use them to advertise themselves and to warn of exposure.

It sends no packets: connecting a datagram socket only selects a route. Host names are resolved.
"""

import asyncio
import socket
import struct
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final

_REMOTE: Final = {4: (socket.AF_INET, "198.51.100.1"), 6: (socket.AF_INET6, "2001:db8::1")}
"""Addresses reserved for documentation. The system routes them through the default gateway."""
_SIOCGIFADDR: Final = 0x8915
_IF_INET6: Final = Path("/proc/net/if_inet6")


def hosts(version: int) -> list[str]:
    """Return the IPv4 or IPv6 addresses at which other hosts may reach this one, that of the default route first."""
    found = [*_default_route(version), *(_ipv4_of_interfaces() if version == 4 else _ipv6_of_interfaces())]
    return [str(address) for address in dict.fromkeys(map(ip_address, found)) if _is_reachable(address)]


async def is_exposed(host: str) -> bool:
    """True if other hosts can connect to a socket bound to this host name or address, by any of its addresses."""
    try:
        found = [host] if _is_number(host) else await _resolve(host)
    except OSError:
        return False  # no socket can be bound to it
    addresses = [ip_address(text) for text in found]
    return not all((getattr(address, "ipv4_mapped", None) or address).is_loopback for address in addresses)


def _is_number(host: str) -> bool:
    try:
        return bool(ip_address(host))
    except ValueError:
        return False


async def _resolve(host: str) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    return [str(place[0]) for *_, place in found]


def _is_reachable(address: IPv4Address | IPv6Address) -> bool:
    return not (address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast)


def _default_route(version: int) -> list[str]:
    family, remote = _REMOTE[version]
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((remote, 9))
            return [str(probe.getsockname()[0])]
    except OSError:  # there is no default route
        return []


def _ipv4_of_interfaces() -> list[str]:
    """Return the IPv4 addresses of all interfaces. Only Linux supports this."""
    try:
        from fcntl import ioctl  # noqa: PLC0415, not on every system
    except ImportError:
        return []
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # the interface has no address, or the system is not Linux
                continue
            found.append(socket.inet_ntoa(answer[20:24]))
    return found


def _ipv6_of_interfaces() -> list[str]:
    """Return the IPv6 addresses of all interfaces. Only Linux supports this."""
    try:
        lines = _IF_INET6.read_text().split("\n")
    except OSError:
        return []
    return [str(IPv6Address(int(line.split()[0], 16))) for line in lines if line]
