"""Whatever bytes a client sends about channels: read, or refused with a reason."""

from typing import Any

import msgspec
from hypothesis import given, strategies as st

from busway.broker.channels import frames
from busway.broker.channels.state.progress import ChannelConfig
from busway.errors import BusError

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
SETTINGS = st.dictionaries(st.sampled_from(ChannelConfig.__struct_fields__) | st.text(max_size=5), ANYTHING)
ASKED = st.fixed_dictionaries(
    {"stream": st.text(max_size=5) | ANYTHING, "channel": st.just("c") | ANYTHING},
    optional={"window": ANYTHING, "create": ANYTHING, "start": ANYTHING, "settings": SETTINGS | ANYTHING},
)


@given(st.binary(max_size=100) | ASKED.map(msgspec.msgpack.encode))
def test_a_channel(rest: bytes) -> None:
    try:
        join = frames.join_of(rest)
    except BusError as error:
        assert error.code >= 20
        assert error.reason
    else:
        assert 0 <= join.window <= frames.WINDOW


@given(SETTINGS)
def test_settings(settings: dict[str, Any]) -> None:
    try:
        config = frames.configured(ChannelConfig(), settings, "stream", "channel")
    except BusError as error:
        assert error.code >= 20
        assert error.reason
    else:
        assert config.lease >= 0
        assert config.max_deliveries >= 0
        msgspec.json.decode(msgspec.json.encode(config), type=ChannelConfig)  # as it is in the journal


@given(st.binary(max_size=64))
def test_a_take(rest: bytes) -> None:
    try:
        take = frames.take_of(rest)
    except BusError as error:
        assert error.code >= 20
        assert error.reason
    else:
        assert isinstance(take, int) or (0 < take.most <= frames.WINDOW and take.timeout >= 0)


@given(st.binary(max_size=200))
def test_an_ack(rest: bytes) -> None:
    try:
        entries = list(frames.entries_of(rest))
    except BusError as error:
        assert error.code >= 20
        assert error.reason
    else:
        assert len(entries) * 20 == len(rest)
        assert all(entry.many >= 0 and entry.delay >= 0 for entry in entries)


NACKED = st.fixed_dictionaries(
    {"spans": st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32)), max_size=3) | ANYTHING},
    optional={
        "delay": st.none() | st.integers(0, 2**32) | ANYTHING,
        "reject": st.booleans() | ANYTHING,
        "failure": st.dictionaries(st.sampled_from(["reason", "error", "traceback", "x"]), st.text()) | ANYTHING,
        "broker": st.text() | ANYTHING,
        "x": ANYTHING,
    },
)


@given(st.binary(max_size=100) | NACKED.map(msgspec.msgpack.encode))
def test_a_nack(rest: bytes) -> None:
    try:
        nack = frames.nack_of(rest)
    except BusError as error:
        assert error.code >= 20
        assert error.reason
    else:
        assert nack.spans
        assert nack.delay is None or 0 <= nack.delay < 2**32
        assert len(msgspec.msgpack.encode(nack.failure)) < 16_000
