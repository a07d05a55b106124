"""The systems that are compared; an adapter is imported only when it is used."""

from .base import System

NAMES = ("busway-tcp", "busway-unix", "zeromq", "nats", "zenoh", "redis", "mosquitto")


def find(name: str) -> System:
    match name:
        case "busway-tcp" | "busway-unix":
            from .busway import Busway

            return Busway(name.removeprefix("busway-"))
        case "nats":
            from .nats import Nats

            return Nats()
        case "zeromq":
            from .zeromq import ZeroMQ

            return ZeroMQ()
        case "zenoh":
            from .zenoh import Zenoh

            return Zenoh()
        case "redis":
            from .redis import Redis

            return Redis()
        case "mosquitto":
            from .mosquitto import Mosquitto

            return Mosquitto()
        case _:
            raise ValueError(f"no system is called {name!r}; there are {', '.join(NAMES)}")
