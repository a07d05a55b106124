"""The addresses that a node advertises by default: those where it listens, as other hosts reach them.

`links` calls this module at the start.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from busway.cluster.node import MOST_ADDRESSES
from busway.transport.address import parse
from busway.transport.interfaces import hosts

log = logging.getLogger("busway.cluster")


def advertised(bound: Iterable[str], find: Callable[[int], Sequence[str]] = hosts) -> tuple[str, ...]:
    """Addresses for other nodes and their clients. For 0.0.0.0 or [::] these are the addresses of the interfaces."""
    addresses: dict[str, None] = {}
    for text in bound:
        address = parse(text)
        if not address.everywhere:
            addresses[text] = None
            continue
        found = find(6 if ":" in address.host else 4)
        here = address.reachable(address.port)
        if found:
            ways = [str(replace(address, host=host)) for host in found]
            log.info("advertising %s to other nodes for %s; change it with --advertise", ", ".join(ways), text)
            addresses |= dict.fromkeys(ways)
        else:
            log.warning(
                "%s: found no address at which other hosts reach this node, so it advertises %s,"
                " which they can't reach: set one with --advertise or Cluster(advertise=...)",
                text,
                here,
            )
            addresses[str(here)] = None
    return tuple(addresses)[:MOST_ADDRESSES]
