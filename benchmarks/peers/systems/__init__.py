"""The systems that are compared; an adapter is imported only when it is used."""

from .base import Peer

STORES = ("busway-streams", "jetstream", "redis-streams")
NAMES = ("busway-tcp", "busway-unix", "zeromq", "nats", "zenoh", "redis", "mosquitto", *STORES)


def find(name: str) -> Peer:
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
        case "busway-streams":
            from .busway_streams import BuswayStreams

            return BuswayStreams()
        case "jetstream":
            from .jetstream import JetStream

            return JetStream()
        case "redis-streams":
            from .redis_streams import RedisStreams

            return RedisStreams()
        case _:
            raise ValueError(f"no system is called {name!r}; there are {', '.join(NAMES)}")
