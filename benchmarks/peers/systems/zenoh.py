"""zenoh through a router (a process that opens zenoh in router mode); clients in threads, as its library does it."""

import threading
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING

import msgspec

from benchmarks.peers.load import Load
from benchmarks.peers.role import Control, Stopwatch

from .base import PUBSUB, REQUESTS, System, package

if TYPE_CHECKING:
    import zenoh


class Zenoh(System):
    name = "zenoh"
    works = PUBSUB | REQUESTS

    def version(self) -> str | None:
        version = package("eclipse-zenoh")
        return f"eclipse-zenoh {version}" if version else None

    def serve(self, load: Load, control: Control) -> None:  # noqa: ARG002
        _session = _open("router", "listen", load)
        threading.Event().wait()

    def publish(self, load: Load, control: Control) -> None:
        import zenoh

        session = _open("client", "connect", load)
        publisher = session.declare_publisher(load.topic, congestion_control=zenoh.CongestionControl.BLOCK)
        put, payload = publisher.put, load.payload
        control.ready_to_go()
        for chunk in control.chunks(load):
            for _ in chunk:
                put(payload)
        control.published()
        threading.Event().wait()

    def subscribe(self, load: Load, control: Control) -> None:
        import zenoh

        session = _open("client", "connect", load)
        stopped = threading.Event()
        control.on_stop(stopped.set)
        count = 0
        with control.counting(load) as tally:

            def receive(_sample: zenoh.Sample) -> None:
                nonlocal count
                count += 1
                if count >= tally.mark:
                    tally.note(count)

            _subscriber = session.declare_subscriber(load.topic, receive)
            control.ready()
            stopped.wait()
            tally.count = count

    def request(self, load: Load, control: Control) -> None:
        import zenoh
        from zenoh.handlers import Callback

        session = _open("client", "connect", load)
        querier = session.declare_querier(load.topic)
        payload = load.payload
        control.ready_to_go()
        watch = Stopwatch(load)
        going = True
        if load.window == 1:
            while going:
                begin = perf_counter_ns()
                for reply in querier.get(payload=payload):
                    assert reply.ok is not None
                going = watch.add(perf_counter_ns() - begin)
        else:
            room = threading.Semaphore(load.window)

            def answered(begin: int, _reply: zenoh.Reply) -> None:
                nonlocal going
                going = watch.add(perf_counter_ns() - begin) and going
                room.release()

            while going:
                room.acquire()
                querier.get(Callback(partial(answered, perf_counter_ns()), indirect=False), payload=payload)
        control.tell(**watch.outcome())
        threading.Event().wait()

    def respond(self, load: Load, control: Control) -> None:
        import zenoh

        session = _open("client", "connect", load)

        def answer(query: zenoh.Query) -> None:
            with query:
                query.reply(query.key_expr, query.payload or b"")

        _queryable = session.declare_queryable(load.topic, answer)
        control.ready()
        threading.Event().wait()


def _open(mode: str, side: str, load: Load) -> "zenoh.Session":
    import zenoh

    config = {
        "mode": mode,
        side: {"endpoints": [f"tcp/{load.url}"]},
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
    }
    if side == "connect":
        config["listen"] = {"endpoints": []}
    return zenoh.open(zenoh.Config.from_json5(msgspec.json.encode(config).decode()))
