"""For the tests of programs that use the bus: a bus in the same process, and a network that fails on demand.

```python
async def test_greeting():
    async with busway.testing.bus() as bus, bus.subscribe("hello/*") as hellos:
        await greet(bus, "alice")
        assert (await hellos.recv(timeout=1)).topic == "hello/alice"
```

The bus is the real one on the memory transport, so what passes here behaves the same over sockets.
`pytest_plugins = ["busway.testing.plugin"]` in a conftest gives it as the fixture `bus`.
"""

from busway.testing.faults import Fault, cut, garble, reset, stall
from busway.testing.local import bus, buses
from busway.testing.proxy import FaultProxy, Link

__all__ = ["Fault", "FaultProxy", "Link", "bus", "buses", "cut", "garble", "reset", "stall"]
