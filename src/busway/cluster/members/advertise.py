"""What a node tells the others of where it is reached, if nobody has said so: where it listens, as they see it."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from busway.cluster.node import MOST_ADDRESSES
from busway.transport.address import parse
from busway.transport.interfaces import hosts

log = logging.getLogger("busway.cluster")


def advertised(bound: Iterable[str], find: Callable[[int], Sequence[str]] = hosts) -> tuple[str, ...]:
    """Addresses for other nodes and their clients. Of one that listens everywhere: those of the interfaces."""
    told: dict[str, None] = {}
    for text in bound:
        address = parse(text)
        if not address.everywhere:
            told[text] = None
            continue
        found = find(6 if ":" in address.host else 4)
        here = address.reachable(address.port)
        if found:
            ways = [str(replace(address, host=host)) for host in found]
            log.info("the other nodes are told %s for %s; --advertise says otherwise", ", ".join(ways), text)
            told |= dict.fromkeys(ways)
        else:
            log.warning(
                "%s: no address is found at which other hosts reach this one, so the other nodes are told %s, which leads "
                "nowhere from there: say it by --advertise, or Cluster(advertise=...)",
                text,
                here,
            )
            told[str(here)] = None
    return tuple(told)[:MOST_ADDRESSES]
