"""For the tests of programs that use the bus: a bus in the same process, a network that fails on demand, and whole simulated worlds.

```python
async def test_greeting():
    async with busway.testing.bus() as bus, bus.subscribe("hello/*") as hellos:
        await greet(bus, "alice")
        assert (await hellos.recv(timeout=1)).topic == "hello/alice"
```

The bus is the real one on the memory transport, so what passes here behaves the same over sockets.
`pytest_plugins = ["busway.testing.plugin"]` in a conftest gives it as the fixture `bus`.
"""

from busway.testing.bus import bus, buses
from busway.testing.proxy import FaultProxy, Link
from busway.testing.proxy_faults import Fault, cut, garble, reset, stall
from busway.testing.simulation import Report, simulate

__all__ = ["Fault", "FaultProxy", "Link", "Report", "bus", "buses", "cut", "garble", "reset", "simulate", "stall"]
