"""Settings check themselves: an invalid value is refused with its name."""

from typing import Any

import pytest

import busway


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({"servers": "tcp://127.0.0.1:7421"}, "servers must be a list"),
        ({"servers": None}, "servers must be a list"),
        ({"servers": ["tcp://127.0.0.1:1", 7]}, "servers must be an address"),
        ({"frame": "8m"}, "frame must be a whole number"),
        ({"frame": 8e6}, "frame must be a whole number"),
        ({"frame": 100}, "frame must be 1024 or more"),
        ({"frame": 2**32}, "frame must fit in 32 bits"),
        ({"topics": 2**32}, "topics must fit in 32 bits"),
        ({"topic": 65_536}, "topic must fit in 16 bits"),
        ({"outbox": -1}, "outbox must be above zero"),
        ({"outbox": 2**64}, "outbox must be at most"),
        ({"connections": None}, "connections must be a whole number"),
        ({"pending": True}, "pending must be a whole number"),
        ({"stall": "0.5"}, "stall: '0.5' is not a length of time"),
        ({"stall": -1}, "stall must not be negative"),
        ({"heartbeat": 0}, "heartbeat must be above zero"),
        ({"handshake": float("inf")}, "handshake must be a finite"),
        ({"drain": float("nan")}, "drain must be a finite"),
        ({"authenticate": True}, "authenticate must be a function"),
    ],
)
def test_settings_refuse_by_name(keywords: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"the setting.* {text}"):
        busway.Settings(**keywords)


def test_what_may_be_zero_or_a_list() -> None:
    addresses = ["tcp://127.0.0.1:7421"]
    settings = busway.Settings(stall=0, drain=0, servers=addresses)
    addresses.clear()
    assert settings.servers == ("tcp://127.0.0.1:7421",)


def test_servers_that_are_no_addresses_are_refused_by_the_server() -> None:
    with pytest.raises(ValueError, match="not an address: 'nowhere'"):
        busway.serve(settings=busway.Settings(servers=["nowhere"]))


@pytest.mark.parametrize(
    ("keywords", "text"), [({"settings": {}}, "settings must"), ({"tls": {}}, "tls must"), ({"name": 1}, "name must")]
)
def test_serve_refuses_by_name(keywords: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        busway.serve(**keywords)


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({"bytes": "1m"}, "bytes of a Buffer must be a whole number"),
        ({"bytes": 0}, "bytes of a Buffer must be above zero"),
        ({"age": None}, "age of a Buffer must be a length of time"),
        ({"age": 0}, "age of a Buffer must be above zero"),
    ],
)
def test_a_buffer_refuses_by_name(keywords: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        busway.Buffer(**keywords)


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({"cert": 7}, "cert of TLS must be the path"),
        ({"ca": b"ca.pem"}, "ca of TLS must be the path"),
        ({"server_name": 7}, "server_name of TLS must be a str"),
        ({"verify": "no"}, "verify of TLS must be True or False"),
        ({"key": "key.pem"}, "TLS has a key but no certificate"),
    ],
)
def test_tls_refuses_by_name(keywords: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        busway.TLS(**keywords)
