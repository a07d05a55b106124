"""The keyring: keys from files and the environment, accepted signatures, and errors for all others."""

import json
import logging
import os
from itertools import count

import pytest

from busway.gateway.auth.keys import VARIABLE, Keyring, KeysError
from busway.gateway.auth.signatures import signed
from busway.gateway.json.statuses import Refused

NOW = 1_800_000_000.0


@pytest.fixture
def write(tmp_path):
    numbers = count()

    def write(text, name="keys.toml", mode=0o600):
        path = tmp_path / name
        path.write_text(text)
        path.chmod(mode)
        # Whatever the clock of the file system can tell apart, the file has changed.
        os.utime(path, ns=(0, next(numbers) * 10**9))
        return path

    return write


SHOP = """
[[key]]
name = "shop"
apiKey = "shop-key"
secretKey = "shop-secret"
publish = ["orders/**"]
subscribe = ["orders/*/state"]
"""


def refused(keyring, request, now=NOW, **more):
    with pytest.raises(Refused) as error:
        keyring.check(request, now, **more)
    assert error.value.status == 403
    return error.value.text


def flat(key="shop-key", secret="shop-secret", **fields):
    return signed({"cmd": "pub", "mq": "A", **fields}, key, secret)


def headers(key="shop-key", secret="shop-secret", **fields):
    return signed({"headers": {"cmd": "pub", "mq": "A", **fields}, "body": "x"}, key, secret)


@pytest.mark.parametrize("form", [flat, headers])
def test_a_signed_request_is_let_in(write, form):
    key = Keyring.load(write(SHOP), {}).check(form(), NOW)
    assert (key.name, key.api_key) == ("shop", "shop-key")
    assert key.may("publish", "orders/1")
    assert not key.may("subscribe", "orders/1")


def test_without_keys_there_is_no_keyring():
    assert Keyring.load(None, {}) is None


def test_what_is_refused_and_why(write):
    ring = Keyring.load(write(SHOP + '[[key]]\napiKey = "empty"'), {})
    whole = flat()
    assert refused(ring, {"cmd": "pub"}) == "missing apiKey in request"
    assert refused(ring, {"headers": {"cmd": "pub"}, "apiKey": "shop-key"}) == "missing apiKey in request"
    assert refused(ring, {"apiKey": "shop-key"}) == "missing signature in request"
    assert refused(ring, flat(key="nobody")) == "apiKey not exists"
    assert refused(ring, {**whole, "apiKey": ["shop-key"]}) == "apiKey not exists"
    assert refused(ring, flat(key="empty")) == "secretKey not exists"
    assert refused(ring, {**whole, "mq": "B"}) == "signature unmatched"
    assert refused(ring, {**whole, "signature": 5}) == "signature unmatched"
    assert refused(ring, headers(secret="guess")) == "signature mismatched"


def test_numbers_are_checked_as_they_were_written(write):
    ring = Keyring.load(write(SHOP), {})
    whole = flat(body=0.0000001)
    raw = json.dumps(whole)
    assert ring.check(whole, NOW, raw=raw)
    assert refused(ring, whole, raw=raw.replace("1e-07", "1e-7")) == "signature unmatched"


def test_keys_of_the_environment(write):
    environ = {VARIABLE: json.dumps([{"apiKey": "k", "secretKey": "env:S", "serve": ["sum"]}]), "S": "very secret"}
    ring = Keyring.load(None, environ)
    assert ring.check(flat("k", "very secret"), NOW).may("serve", "sum")
    both = Keyring.load(write(SHOP), environ)
    assert len(both) == 2
    assert both.check(flat(), NOW).name == "shop"


def test_secrets_in_files(write):
    write("s3cret\n", "shop.secret")
    ring = Keyring.load(write(SHOP.replace('"shop-secret"', '"file:shop.secret"')), {})
    assert ring.check(flat(secret="s3cret"), NOW)


@pytest.mark.parametrize("form", [flat, headers])
def test_with_a_window_requests_are_let_in_once_and_in_time(write, form):
    ring = Keyring.load(write("window = 60\n" + SHOP), {})
    assert refused(ring, form()) == "missing timestamp in request"
    assert refused(ring, form(timestamp="soon")) == "missing timestamp in request"
    assert refused(ring, form(timestamp=True)) == "missing timestamp in request"
    assert refused(ring, form(timestamp=str(NOW - 61))) == "timestamp out of window"
    assert refused(ring, form(timestamp=str(NOW + 61))) == "timestamp out of window"
    for timestamp in (NOW - 59, str(int(NOW + 59)), int(NOW * 1000), str(int(NOW * 1000 - 1))):
        request = form(timestamp=timestamp)
        assert ring.check(request, NOW)
        assert refused(ring, request) == "request was sent before"
        where = request.get("headers", request)
        where["signature"] = where["signature"].swapcase()
        assert refused(ring, request) == "request was sent before"
    assert ring.check(form(timestamp=NOW, id="1"), NOW)
    assert ring.check(form(timestamp=NOW, id="2"), NOW)


def test_a_window_of_its_own(write):
    ring = Keyring.load(write("window = 60\n" + SHOP + "window = 5"), {})
    assert refused(ring, flat(timestamp=NOW - 6)) == "timestamp out of window"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[key]", "keys.toml: .*line 1"),
        ("keys = 1", "unknown field `keys`"),
        ('[[key]]\nsecretKey = "s"', "key 1: .*apiKey"),
        ('[[key]]\napiKey = ""', "key 1.*length"),
        ('[[key]]\napiKey = "a"\nsecretkey = "s"', r"key 1 \(a\): .*unknown field `secretkey`"),
        ('[[key]]\napiKey = "a"\nname = "x"\npublish = "b"', r"key 1 \(x\): .*publish"),
        ('[[key]]\napiKey = "a"\npublish = ["b//c"]', r"key 1 \(a\): publish: .*empty segment"),
        ('[[key]]\napiKey = "a"\npublish = ["re:("]', r"key 1 \(a\): publish: .*regex parse error"),
        ('[[key]]\napiKey = "a"\nwindow = 0', r"key 1 \(a\): .*window"),
        ('[[key]]\napiKey = "a"\n[[key]]\napiKey = "a"', r"key 2 \(a\): another key has the same apiKey"),
        ('[[key]]\napiKey = "a"\nsecretKey = "env:GONE"', r"key 1 \(a\): secretKey: the variable GONE is not set"),
        ('[[key]]\napiKey = "a"\nsecretKey = "file:gone"', r"key 1 \(a\): secretKey: .*gone can't be read"),
        ('[[key]]\napiKey = "a"\nsecretKey = ""', r"key 1 \(a\): secretKey is empty"),
    ],
)
def test_bad_files_are_told(write, text, told):
    with pytest.raises(KeysError, match=told) as error:
        Keyring.load(write(text), {})
    assert "keys.toml" in str(error.value)


@pytest.mark.parametrize("text", ["{", "{}", "[1]", "[[]]", "[" * 100_000])
def test_a_bad_environment_is_told(text):
    with pytest.raises(KeysError, match=VARIABLE):
        Keyring.load(None, {VARIABLE: text})


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(KeysError, match="can't be read"):
        Keyring.load(tmp_path / "keys.toml", {})


def test_a_file_that_everybody_can_read_is_warned_of(write, caplog):
    Keyring.load(write(SHOP, mode=0o600), {})
    assert not caplog.records
    Keyring.load(write(SHOP, mode=0o644), {})
    assert "can access the secrets in " in caplog.text


def test_changed_files_are_read_again(write, caplog):
    caplog.set_level(logging.INFO)
    write("first", "shop.secret")
    ring = Keyring.load(write(SHOP.replace('"shop-secret"', '"file:shop.secret"')), {})
    assert ring.check(flat(secret="first"), NOW)
    write("second", "shop.secret")
    assert ring.check(flat(secret="first"), NOW + 0.5)  # looked at once a second
    assert ring.check(flat(secret="second"), NOW + 1)
    write(SHOP.replace("shop-key", "new-key"))
    assert refused(ring, flat(), NOW + 2) == "apiKey not exists"
    assert ring.check(flat("new-key"), NOW + 2)
    assert "reloaded 1 keys" in caplog.text


def test_a_changed_file_that_is_wrong_changes_nothing(write, caplog):
    path = write(SHOP)
    ring = Keyring.load(path, {})
    write("[[key]")
    assert ring.check(flat(), NOW)
    assert "the changed keys are invalid, so the old ones stay" in caplog.text
    caplog.clear()
    assert ring.check(flat(), NOW + 1)
    assert not caplog.records, "the same file was told of twice"
    path.unlink()
    assert ring.check(flat(), NOW + 2)
    assert "can't be read" in caplog.text
    write(SHOP.replace("shop-key", "new-key"))
    assert ring.check(flat("new-key"), NOW + 3)


def test_a_replay_is_noticed_across_a_change_of_the_file(write):
    ring = Keyring.load(write("window = 60" + SHOP), {})
    request = flat(timestamp=NOW)
    assert ring.check(request, NOW)
    write("window = 60\n" + SHOP)
    assert refused(ring, request, NOW + 2) == "request was sent before"
