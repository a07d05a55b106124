"""What lies in a copy of which nobody hands out is told, once."""

from busway.cluster.failover.stalled import STARTED, StalledChannels


class Heir:
    """Knows what is left only when its journal is written."""

    def __init__(self):
        self.found = {}

    def left(self, _guid):
        return self.found


def test_what_is_known_only_after_a_write_is_told_all_the_same():
    heir, told = Heir(), []
    waiting = StalledChannels(heir, lambda guid, text: told.append((guid, text)), 10.0)
    idle = {"a" * 32: STARTED}
    for now in (0.0, 9.0, 10.0, 11.0):
        waiting.look(now, idle)
    assert told == []
    heir.found["jobs"] = 3  # its disk was slow
    for now in (12.0, 13.0):
        waiting.look(now, idle)
    assert [guid for guid, _ in told] == ["a" * 32]
    assert told[0][1].startswith("3 messages of jobs wait in the replica of lost node aaaaaaaa")
    waiting.look(14.0, {})
    for now in (20.0, 30.0):
        waiting.look(now, idle)
    assert len(told) == 2, "it was back meanwhile"
