"""At which addresses other hosts may reach this one: those of its interfaces, as far as the system tells them.

A driver. Nothing is sent: a datagram socket that is connected is only asked which way it would go. A name is looked up.
"""

import asyncio
import socket
import struct
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final

_ELSEWHERE: Final = {4: (socket.AF_INET, "198.51.100.1"), 6: (socket.AF_INET6, "2001:db8::1")}
"""Addresses that are nobody's, so whoever would be reached by them is beyond the next router."""
_SIOCGIFADDR: Final = 0x8915
_IF_INET6: Final = Path("/proc/net/if_inet6")


def hosts(version: int) -> list[str]:
    """Addresses of this host of IP version 4 or 6 that are good elsewhere, the one that leads out first; maybe none."""
    found = [*_way_out(version), *(_ioctl() if version == 4 else _listed())]
    return [str(one) for one in dict.fromkeys(map(ip_address, found)) if _good(one)]


async def is_exposed(host: str) -> bool:
    """Whether other hosts can connect to a socket that is bound to this host: all of its addresses count."""
    try:
        found = [host] if _is_number(host) else await _looked_up(host)
    except OSError:
        return False  # nothing can be bound to it
    addresses = [ip_address(one) for one in found]
    return not all((getattr(one, "ipv4_mapped", None) or one).is_loopback for one in addresses)


def _is_number(host: str) -> bool:
    try:
        return bool(ip_address(host))
    except ValueError:
        return False


async def _looked_up(host: str) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    return [str(place[0]) for *_, place in found]


def _good(address: IPv4Address | IPv6Address) -> bool:
    return not (address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast)


def _way_out(version: int) -> list[str]:
    family, elsewhere = _ELSEWHERE[version]
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))
            return [str(probe.getsockname()[0])]
    except OSError:  # there is no way out
        return []


def _ioctl() -> list[str]:
    """Of all interfaces that have one; of Linux alone."""
    try:
        from fcntl import ioctl  # noqa: PLC0415, not everywhere
    except ImportError:
        return []
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has none, or this is another system
                continue
            found.append(socket.inet_ntoa(answer[20:24]))
    return found


def _listed() -> list[str]:
    """The same of version 6."""
    try:
        lines = _IF_INET6.read_text().split("\n")
    except OSError:
        return []
    return [str(IPv6Address(int(line.split()[0], 16))) for line in lines if line]
