"""CloudEvents as values: the three modes in both directions, refused input, and a lossless conversion to messages."""

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, strategies as st

from busway.fields import encode_fields
from busway.gateway.cloudevents.event import BATCH, STRUCTURED, Event, EventError, decode, to_batch, to_binary, to_json
from busway.gateway.cloudevents.mapping import from_message, source, to_message

PLAIN = Event("1", "/shop", "order.placed")
FULL = replace(
    PLAIN,
    data=b'{"total": 12.50,  "note":"\xc5\xbc"}',
    subject="orders/7",
    time="2026-11-05T17:31:00.123456789Z",
    datacontenttype="application/json; charset=utf-8",
    dataschema="https://example.org/order",
    extensions={"venue": "krk", "size": 5, "urgent": True, "note": 'ż "50%" \\ ü', "empty": ""},
)
EVENTS = [
    PLAIN,
    FULL,
    replace(PLAIN, data=b"null"),
    replace(PLAIN, data=b"not json"),
    replace(PLAIN, data=b'"text"'),
    replace(PLAIN, data="zażółć\n".encode(), datacontenttype="text/plain"),
    replace(PLAIN, data=b"\x00\xff", datacontenttype="application/octet-stream"),
    replace(PLAIN, data=b"\xff", datacontenttype="text/plain"),
    replace(PLAIN, data=b'{"a":1}', datacontenttype="application/vnd.x+json"),
]


def binary(event):
    headers, body = to_binary(event)
    assert all(value.isascii() and value.isprintable() for value in headers.values())
    return {name.title(): value for name, value in headers.items()}, body  # names of headers have no case


@pytest.mark.parametrize("event", EVENTS)
def test_structured_there_and_back(event):
    assert decode({"Content-Type": f"{STRUCTURED}; charset=utf-8"}, to_json(event)) == [event]


@pytest.mark.parametrize("event", EVENTS)
def test_binary_there_and_back(event):
    usual = event.data is not None and event.datacontenttype is None
    there = replace(event, datacontenttype="application/json") if usual else event
    assert decode(*binary(event)) == [there]


def test_batches_there_and_back():
    assert decode({"content-type": BATCH}, to_batch(EVENTS)) == EVENTS
    assert decode({"content-type": BATCH}, b"[]") == []


def test_json_data_is_sent_as_it_is():
    assert b'"data":{"total": 12.50,  "note":"\xc5\xbc"}' in to_json(FULL)
    assert "data_base64" not in json.loads(to_json(FULL))


def test_structured_as_the_specification_shows_it():
    text = b"""{
        "specversion": "1.0", "type": "com.example.someevent", "source": "/mycontext", "subject": null, "id": "C234-1234-1234",
        "time": "2018-04-05T17:31:00Z", "comexampleextension1": "value", "comexampleothervalue": 5.0,
        "datacontenttype": "application/vnd.apache.thrift.binary", "data_base64": "AAEC"
    }"""
    (event,) = decode({"content-type": STRUCTURED}, text)
    assert event.data == b"\0\1\2"
    assert event.subject is None
    assert event.extensions == {"comexampleextension1": "value", "comexampleothervalue": 5}


def test_binary_as_the_specification_shows_it():
    headers = {
        "ce-specversion": "1.0",
        "ce-type": "com.example.someevent",
        "ce-time": "2018-04-05T03:56:24Z",
        "ce-id": "1234-1234-1234",
        "ce-source": "/mycontext/subcontext",
        "ce-text": "Euro%20%E2%82%AC%20%F0%9F%98%80",
        "ce-quoted": '"a \\"b\\""',
        "Content-Type": "application/json",
    }
    (event,) = decode(headers, b"{}")
    assert event.extensions == {"text": "Euro € 😀", "quoted": 'a "b"'}
    assert to_binary(event)[0]["ce-text"] == "Euro%20%E2%82%AC%20%F0%9F%98%80"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"id": None}, "attribute id is missing"),
        ({"source": ""}, "attribute source is empty"),
        ({"type": 5}, "attribute type must be text"),
        ({"specversion": None}, "attribute specversion is missing"),
        ({"specversion": "0.3"}, "'0.3' is not supported"),
        ({"time": "yesterday"}, "RFC 3339"),
        ({"time": "2026-11-05T17:31:00"}, "RFC 3339"),
        ({"time": "2026-11-05 17:31:00Z"}, "RFC 3339"),
        ({"Upper": "x"}, "can't name an extension"),
        ({"with-dash": "x"}, "can't name an extension"),
        ({"x" * 65: "x"}, "can't name an extension"),
        ({"ext": 1.5}, "attribute ext must be"),
        ({"ext": 1e300}, "beyond 32 bits"),
        ({"ext": [1]}, "attribute ext must be"),
        ({"ext": 2**31}, "beyond 32 bits"),
        ({"ext": "a\r\nb"}, "control characters"),
        ({"id": "a\x00"}, "control characters"),
        ({"data": 1, "data_base64": "AA=="}, "both"),
        ({"data_base64": "%"}, "not valid base64"),
        ({"data_base64": 5}, "not valid base64"),
    ],
)
def test_what_is_no_event_is_told(change, told):
    whole = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", **change}
    text = json.dumps({name: value for name, value in whole.items() if value is not None}).encode()
    with pytest.raises(EventError, match=told) as error:
        decode({"content-type": STRUCTURED}, text)
    assert error.value.status == 400
    good = to_json(PLAIN)
    with pytest.raises(EventError, match="event 2 of 3: "):
        decode({"content-type": BATCH}, b"[" + b",".join([good, text, good]) + b"]")


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"1", b"\xff", b"[" * 100_000, b'{"a":' * 100_000])
@pytest.mark.parametrize("kind", [STRUCTURED, BATCH])
def test_broken_json_is_told(kind, text):
    if (kind, text) == (BATCH, b"[]"):
        return
    with pytest.raises(EventError):
        decode({"content-type": kind}, text)


def test_other_formats_and_no_event_at_all():
    with pytest.raises(EventError, match="is not supported") as error:
        decode({"content-type": "application/cloudevents+avro"}, b"")
    assert error.value.status == 415
    with pytest.raises(EventError, match="not a CloudEvent"):
        decode({"content-type": "application/json"}, b"{}")
    headers, body = to_binary(PLAIN)
    with pytest.raises(EventError, match="not UTF-8"):
        decode(headers | {"ce-x": "%FF"}, body)
    with pytest.raises(EventError, match="header content-type"):
        decode(headers | {"ce-datacontenttype": "text/plain"}, body)
    with pytest.raises(EventError, match="buswayfields can't be read"):
        decode(headers | {"ce-buswayfields": "???"}, body)


def test_a_header_cannot_begin_another_one():
    headers, _ = to_binary(replace(PLAIN, extensions={"x": "a%0d%0aSet-Cookie:b"}))
    assert headers["ce-x"] == "a%250d%250aSet-Cookie:b"
    with pytest.raises(EventError, match="control characters"):
        decode({**headers, "ce-x": "a%0d%0aSet-Cookie:b"}, b"")


@dataclass
class Sent:
    topic: str = "orders/7"
    payload: bytes = b"{}"
    fields: dict = field(default_factory=dict)
    id: str = "00000000000000ab0000000000000001"
    sender: str = ""
    kind: str = "publish"
    time: datetime = datetime(2026, 11, 5, 17, 31, tzinfo=UTC)


def test_an_event_as_a_message():
    topic, payload, fields = to_message(FULL)
    assert (topic, payload) == ("orders/7", FULL.data)
    assert fields == {
        **FULL.extensions,
        "ce-id": "1",
        "ce-source": "/shop",
        "ce-type": "order.placed",
        "ce-time": FULL.time,
        "ce-datacontenttype": FULL.datacontenttype,
        "ce-dataschema": FULL.dataschema,
    }
    assert to_message(FULL, "/audit")[0] == "audit"
    assert to_message(FULL, "audit")[2]["ce-subject"] == "orders/7"
    with pytest.raises(EventError, match="the topic is missing"):
        to_message(PLAIN)


def test_a_message_as_an_event():
    event = from_message(Sent(fields={"venue": "krk"}, sender="feed 1"))
    assert event == Event(
        "00000000000000ab0000000000000001",
        "feed%201",
        "busway.publish",
        b"{}",
        "orders/7",
        "2026-11-05T17:31:00Z",
        extensions={"venue": "krk"},
    )
    assert source(Sent()) == "busway:00000000000000ab"
    assert from_message(Sent(payload=b"")).data is None
    assert from_message(Sent(payload="ż".encode())).datacontenttype == "text/plain; charset=utf-8"
    assert from_message(Sent(payload=b"\xff")).datacontenttype == "application/octet-stream"


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_through_the_bus_and_back(event):
    topic, payload, fields = to_message(event, "orders/7")
    back = from_message(Sent(topic, payload, fields))
    if event.datacontenttype is None:
        back = replace(back, datacontenttype=None)  # what the payload looks like
    assert back == replace(event, **after(event))


def after(event):
    """What an event has in addition when it comes back: the topic as its subject, the time of the message."""
    return {"subject": event.subject or "orders/7", "time": event.time or "2026-11-05T17:31:00Z"}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
NAMES = st.sampled_from(
    ["venue", "id", "data", "buswayfields", "Upper", "with-dash", "ż", "ce-id", "ce-x", "ce-time", "x"]
)


def packable(fields):
    try:
        encode_fields(fields)
    except ValueError:
        return False
    return True


@given(
    st.dictionaries(NAMES, VALUES, max_size=5).filter(packable),
    st.binary(max_size=20) | st.text(max_size=9).map(str.encode),
)
def test_any_message_through_http_and_back(fields, payload):
    event = from_message(Sent(payload=payload, fields=fields))
    for back in (
        decode(*binary(event))[0],
        decode({"content-type": STRUCTURED}, to_json(event))[0],
        decode({"content-type": BATCH}, to_batch([event]))[0],
    ):
        topic, arrived, found = to_message(back)
        assert (topic, arrived) == ("orders/7", payload)
        assert {name: value for name, value in found.items() if name in fields} == fields
        assert all(name.startswith("ce-") for name in found.keys() - fields.keys())
