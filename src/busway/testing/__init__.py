"""Tools for tests of programs that use the bus: an in-process bus, a fault-injecting proxy, and a kit for simulated tests.

```python
async def test_greeting():
    async with busway.testing.bus() as bus, bus.subscribe("hello/*") as hellos:
        await greet(bus, "alice")
        assert (await hellos.recv(timeout=1)).topic == "hello/alice"
```

The bus is a real server on the memory transport, so it behaves as it does over sockets.
`pytest_plugins = ["busway.testing.plugin"]` in a conftest provides the fixture `bus`. `busway.testing.simulation` is the
kit for simulated tests, in virtual time and on a simulated network.
"""

from busway.testing.bus import bus, buses
from busway.testing.proxy import FaultProxy, Link
from busway.testing.proxy_faults import Fault, cut, garble, reset, stall

__all__ = ["Fault", "FaultProxy", "Link", "bus", "buses", "cut", "garble", "reset", "stall"]
