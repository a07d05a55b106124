"""A kit for simulated tests: real brokers and programs in virtual time, on a simulated network and disks.

```python
with World(seed=1) as world:
    node = world.add_node("host", busway.Settings(), stores=True)
    world.run(play(world, node))  # the coroutine starts, crashes and repairs nodes, and launches programs
```

A `World` has hosts with brokers (`Node`) and programs (`Process`), a `Network` with a `Path` for each direction between
two hosts, and a `Disk` for each broker. The same seed gives the same run. `docs/howto/testing.md` shows how to use it.
"""

from busway.testing.simulation.disk import Disk
from busway.testing.simulation.loop import Stuck
from busway.testing.simulation.network import Network, Path
from busway.testing.simulation.process import Process
from busway.testing.simulation.transport import SimulatedTransport
from busway.testing.simulation.world import Node, World

__all__ = ["Disk", "Network", "Node", "Path", "Process", "SimulatedTransport", "Stuck", "World"]
