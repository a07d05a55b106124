"""Whether a mirror may go on handing out for a node that is gone, after it was started again or rested: by what others have seen.

A machine. Each node remembers which mirror it saw hand out last for a node that it misses, until that node is here again. For anybody else to
hand out meanwhile takes half of the cluster, be it the node itself, or more, be it another mirror. So if more than half, with the mirror
itself, know of nobody after it, there was nobody: and what the mirror knows is all there is. Who was started again has forgotten what it saw, and
is no witness.
"""

from collections.abc import Collection, Iterable, Mapping

from busway.cluster.node import MOST_NODES


class Witness:
    """What one node has seen."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    @property
    def stood(self) -> tuple[tuple[str, str], ...]:
        """Nodes that are missed here, and who handed out for each last."""
        return tuple(sorted(self._last.items()))[:MOST_NODES]

    def saw(self, hander: str, hands: Iterable[str], here: Collection[str]) -> None:
        """A node says whose channels it hands out of. `here`: the nodes that are linked; for those nobody needs to."""
        for guid in hands:
            if guid != hander and guid not in here:
                self._last[guid] = hander

    def came(self, guid: str) -> None:
        """That node is here: it may hand out itself, also of what this one does not see."""
        self._last.pop(guid, None)


def undisputed(guid: str, me: str, told: Mapping[str, Mapping[str, str]], nodes: Collection[str]) -> bool:
    """Whether enough know of nobody who handed out for a node after this one, `me`.

    `told`: what others have seen, by their guids. `nodes`: all that counted then or do now; one that was not seen for long may be with the
    node, so it counts on.
    """
    agree = {me, *(one for one, stood in told.items() if stood.get(guid) == me)}
    return 2 * len(agree.intersection(nodes)) > len(nodes)
