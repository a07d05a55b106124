"""Payloads read and written without a subscription: decode, encode and message.json()."""

import uuid
from dataclasses import dataclass

import msgspec
import pydantic
import pytest

import busway
from tests.support.net import Net


class Placed(busway.Protocol, prefix="orders/placed"):
    id: int
    items: list[str] = []


class Packed(busway.Protocol, prefix="packed", encoding="msgpack"):
    id: int
    data: bytes = b""


class Total(busway.Protocol):
    value: int


@busway.protocol(prefix="orders/dataclass", encoding="msgpack")
@dataclass
class Plain:
    id: int


@busway.protocol(prefix="orders/struct")
class Struct(msgspec.Struct):
    id: int


@busway.protocol(prefix="orders/model", encoding="msgpack")
class Model(pydantic.BaseModel):
    id: int
    key: uuid.UUID = uuid.UUID(int=1)


VALUES = [Placed(id=1, items=["tea"]), Packed(id=2, data=b"\xff"), Total(value=3), Plain(4), Struct(5), Model(id=6)]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_is_encoded_and_decoded(value):
    payload = busway.encode(value)
    assert busway.decode(type(value), payload) == value
    assert payload.startswith(b"{") == (type(value) not in {Packed, Plain, Model})
    if isinstance(value, busway.Protocol):
        assert (value.encode(), type(value).decode(payload)) == (payload, value)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
async def test_a_message_that_arrived_untyped_is_decoded(net: Net, value):
    bus = await net.connect()
    async with bus.subscribe("**") as everything:
        await bus.publish("x", value)
        message = await everything.recv(timeout=60)
    assert busway.decode(type(value), message) == value


@pytest.mark.parametrize(
    ("kind", "payload"), [(Placed, b'{"id":"a"}'), (Packed, b"\x81\xa2id\xa1a"), (Model, b"\x81\xa2id\xa1a")]
)
async def test_a_payload_that_does_not_fit_names_the_field_and_the_topic(net: Net, kind, payload):
    with pytest.raises(busway.PayloadError, match=rf"^field 'id' of a payload: .*\(type {kind.__name__}\)$"):
        busway.decode(kind, payload)
    bus = await net.connect()
    async with bus.subscribe("**") as everything:
        await bus.publish("some/where", payload)
        message = await everything.recv(timeout=60)
    with pytest.raises(busway.PayloadError, match=r"^field 'id' of a message on topic 'some/where': ") as caught:
        busway.decode(kind, message)
    assert (caught.value.topic, caught.value.field) == ("some/where", "id")


def test_a_type_that_is_no_protocol_is_json():
    assert busway.decode(list[int], b"[1,2]") == [1, 2]
    assert busway.encode({"a": [1]}) == b'{"a":[1]}'
    with pytest.raises(busway.PayloadError, match=r"can't be encoded as json"):
        busway.encode(object())
