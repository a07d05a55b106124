"""The blocking API has the names and parameters of the asyncio API."""

import inspect
from typing import Any

import pytest

import busway
import busway.sync
from busway.client.durable.feed import Feed as AsyncFeed
from busway.sync.generated.feed import Feed

REGISTERED = {"announce", "ended", "label", "live", "restored", "start"}
INBOX = {"arrived", "full", "gap", "taken"}

CLASSES: list[tuple[type[Any], type[Any], set[str]]] = [
    (busway.sync.Bus, busway.Bus, set()),
    (busway.sync.Server, busway.Server, set()),
    (busway.sync.Subscription, busway.Subscription, {*REGISTERED, *INBOX, "apart", "plain"}),
    (busway.sync.Subscription, busway.TypedSubscription, {"start"}),
    (busway.sync.Channel, busway.Channel, {*REGISTERED, *INBOX, "missed", "patience", "policy", "received"}),
    (busway.sync.TypedChannel, busway.TypedChannel, {"start"}),
    (busway.sync.Delivered, busway.Delivered, set()),
    (busway.sync.Service, busway.Service, {*REGISTERED, "answer", "asked", "called", "handled", "room"}),
    (busway.sync.Service, busway.TypedService, {"start"}),
    (busway.sync.Request, busway.Request, {"message"}),  # each object has it
    (busway.sync.TypedRequest, busway.TypedRequest, set()),
    (busway.sync.Gathering, busway.Gathering, {"aclose", "end", "replied", "time_out"}),
    (busway.sync.Stream, busway.Stream, set()),
    (busway.sync.Events, busway.EventStream, {"end", "put"}),
    (Feed, AsyncFeed, set()),
]
"""A class of the blocking API, that of the asyncio API, and the names that only the latter has."""


def names(cls: type[Any]) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


def shape(function: Any, *, native: bool = False) -> list[tuple[Any, ...]]:
    """Names, kinds and defaults of the parameters. Python does not see the defaults of native functions."""
    parameters = [one for one in inspect.signature(function).parameters.values() if one.name != "self"]
    return [(one.name, one.kind, None if native else one.default) for one in parameters]


@pytest.mark.parametrize(
    ("blocking", "original", "missing"),
    [pytest.param(*row, id=f"{row[0].__name__}-{row[1].__name__}") for row in CLASSES],
)
def test_a_class_is_in_step(blocking: type[Any], original: type[Any], missing: set[str]) -> None:
    assert names(original) - names(blocking) == missing
    for name in sorted(names(original) - missing):
        one, other = getattr(blocking, name), getattr(original, name)
        if inspect.isroutine(other):
            native = not inspect.isfunction(other)
            assert shape(one, native=native) == shape(other, native=native), name
            assert bool(inspect.getdoc(one)) == bool(inspect.getdoc(other)), name
        else:
            assert inspect.isdatadescriptor(one), name


@pytest.mark.parametrize(
    ("blocking", "original"), [(busway.sync.connect, busway.connect), (busway.sync.serve, busway.serve)]
)
def test_a_function_is_in_step(blocking: Any, original: Any) -> None:
    assert shape(blocking) == shape(original)


WRONG = {
    "connect": lambda bus: busway.sync.connect("tcp://127.0.0.1:1", wrong=1),
    "serve": lambda bus: busway.sync.serve(wrong=1),
    "subscribe": lambda bus: bus.subscribe("x", wrong=1),
    "channel": lambda bus: bus.channel("default", "c", wrong=1),
    "publish": lambda bus: bus.publish("x", wrong=1),
    "publish_many": lambda bus: bus.publish_many("x", [], wrong=1),
    "request": lambda bus: bus.request("x", wrong=1),
    "dead_letters": lambda bus: bus.dead_letters("default", "c", wrong=1),
    "create_stream": lambda bus: bus.create_stream("s", ["x"], wrong=1),
    "create_channel": lambda bus: bus.create_channel("default", "c", wrong=1),
}


@pytest.mark.parametrize("verb", WRONG)
def test_a_wrong_keyword_is_named(verb: str) -> None:
    with busway.sync.serve() as server, server.connect() as bus, pytest.raises(TypeError, match="'wrong'"):
        WRONG[verb](bus)
