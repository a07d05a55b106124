"""ZeroMQ through a proxy: XSUB/XPUB for messages, ROUTER/DEALER for requests; plain blocking sockets in the clients."""

import threading
from collections import deque
from time import perf_counter_ns
from typing import TYPE_CHECKING

from benchmarks.peers.load import Load
from benchmarks.peers.role import Control, Stopwatch

from .base import PUBSUB, REQUESTS, System, free_port, package

if TYPE_CHECKING:
    import zmq


class ZeroMQ(System):
    name = "zeromq"
    works = PUBSUB | REQUESTS  # no groups: a PUSH/PULL pipeline has no topics

    def version(self) -> str | None:
        if package("pyzmq") is None:
            return None
        import zmq

        return f"libzmq {zmq.zmq_version()}, pyzmq {package('pyzmq')}"

    def address(self, folder: object) -> str:  # noqa: ARG002
        return "127.0.0.1:" + ",".join(str(free_port()) for _ in range(4))

    def serve(self, load: Load, control: Control) -> None:  # noqa: ARG002
        import zmq

        context = zmq.Context()
        publishers, subscribers, requesters, responders = (
            _lossless(context.socket(kind)) for kind in (zmq.XSUB, zmq.XPUB, zmq.ROUTER, zmq.DEALER)
        )
        for socket, port in zip((publishers, subscribers, requesters, responders), _ports(load), strict=True):
            socket.bind(port)
        threading.Thread(target=zmq.proxy, args=(requesters, responders), daemon=True).start()
        zmq.proxy(publishers, subscribers)

    def publish(self, load: Load, control: Control) -> None:
        import zmq

        socket = _lossless(zmq.Context().socket(zmq.PUB))
        socket.connect(_ports(load)[0])
        message = load.topic.encode() + load.payload  # one part is faster than two, and the topic is a prefix of it
        send = socket.send
        control.ready_to_go()
        for chunk in control.chunks(load):
            for _ in chunk:
                send(message)
        control.published()
        threading.Event().wait()  # what waits in the socket goes on being sent

    def subscribe(self, load: Load, control: Control) -> None:
        import zmq

        socket = _lossless(zmq.Context().socket(zmq.SUB))
        socket.connect(_ports(load)[1])
        socket.subscribe(load.topic)
        socket.setsockopt(zmq.RCVTIMEO, 100)
        stopped = threading.Event()
        control.on_stop(stopped.set)
        receive = socket.recv
        control.ready()
        count = 0
        with control.counting(load) as tally:
            mark = tally.mark
            while not stopped.is_set():
                try:
                    while True:
                        receive()
                        count += 1
                        if count >= mark:
                            mark = tally.note(count)
                except zmq.Again:
                    tally.count = count

    def request(self, load: Load, control: Control) -> None:
        import zmq

        socket = zmq.Context().socket(zmq.DEALER)
        socket.connect(_ports(load)[2])
        payload = load.payload
        control.ready_to_go()
        watch = Stopwatch(load)
        begun: deque[int] = deque()  # one responder answers in order
        going = True
        while going:
            while len(begun) < load.window:
                begun.append(perf_counter_ns())
                socket.send_multipart((b"", payload))
            socket.recv_multipart()
            going = watch.add(perf_counter_ns() - begun.popleft())
        control.tell(**watch.outcome())

    def respond(self, load: Load, control: Control) -> None:
        import zmq

        socket = zmq.Context().socket(zmq.REP)
        socket.connect(_ports(load)[3])
        control.ready()
        while True:
            socket.send(socket.recv())


def _ports(load: Load) -> list[str]:
    host, ports = load.url.split(":")
    return [f"tcp://{host}:{port}" for port in ports.split(",")]


def _lossless(socket: "zmq.Socket[bytes]") -> "zmq.Socket[bytes]":
    """A sender whose receiver's queue is full waits instead of dropping: nothing is lost, and memory is bounded."""
    import zmq

    socket.set_hwm(10_000)
    if socket.socket_type in {zmq.PUB, zmq.XPUB}:
        socket.setsockopt(zmq.XPUB_NODROP, 1)
    return socket
