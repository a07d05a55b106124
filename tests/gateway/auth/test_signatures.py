"""Signatures: the vectors, the text that is signed, and everything that must not pass for a right one."""

import hmac
import json
from hashlib import sha256
from pathlib import Path

import pytest

from busway.gateway.auth.signatures import JAVASCRIPT, PYTHON, control, form_of, sign, signed, signed_text, verify

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "zbus-signatures.json").read_text("utf-8"))
KEY, SECRET = VECTORS["apiKey"], VECTORS["secretKey"]
CASES = [pytest.param(case, id=f"{number}-{case['form']}") for number, case in enumerate(VECTORS["cases"])]


@pytest.mark.parametrize("case", CASES)
def test_the_vectors(case):
    message = case["message"]
    assert form_of(message) == case["form"]
    wanted = case["signature"] if case["form"] == "headers" else case["signature"].upper()
    assert sign(message, KEY, SECRET) == wanted
    whole = signed(message, KEY, SECRET)
    assert control(whole)["apiKey"] == KEY
    assert verify(whole, SECRET)
    assert "apiKey" not in control(message), "the request itself was changed"


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("change", [str.upper, str.lower])
def test_either_case_of_the_digits_is_right(case, change):
    whole = signed(case["message"], KEY, SECRET)
    control(whole)["signature"] = change(case["signature"])
    assert verify(whole, SECRET)


def test_the_text_of_the_first_vector():
    text = signed_text(VECTORS["cases"][0]["message"], KEY).decode()
    assert text == f'{{"body":[1,2],"headers":{{"ack":"false","apiKey":"{KEY}","cmd":"pub","mq":"MyRpc"}}}}'


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ({"b": 1, "a": {"d": 2, "c": 3}}, '{"a":{"c":3,"d":2},"b":1}'),
        ({"a": [3, 1, {"y": 1, "x": None}]}, '{"a":[3,1,{"y":1}]}'),
        ({"a": None, "b": [None], "c": {"d": None}}, '{"b":[null],"c":{}}'),
        ({"a": "żółć/é€😀"}, '{"a":"żółć/é€😀"}'),
        ({"a": '"\\\n\t\x01'}, '{"a":"\\"\\\\\\n\\t\\u0001"}'),
        ({"a": "\ud800"}, '{"a":"\\ud800"}'),
        ({"a": True, "b": False, "c": 1.5, "d": ""}, '{"a":true,"b":false,"c":1.5,"d":""}'),
        ({"\uffff": 1, "\U00010000": 2}, '{"\U00010000":2,"\uffff":1}'),  # as UTF-16 sorts
        ({"a": {}, "b": []}, '{"a":{},"b":[]}'),
        ({"signature": "x", "a": 1, "b": {"signature": "y"}}, '{"a":1,"b":{"signature":"y"}}'),
        ({"headers": {"signature": "x", "a": "1"}, "signature": "y"}, '{"headers":{"a":"1"},"signature":"y"}'),
    ],
)
def test_the_text_that_is_signed(request_, text):
    assert signed_text(request_).decode() == text


@pytest.mark.parametrize(
    "number", ["1e-7", "1E-07", "1.0E-7", "0.10", "100000000000000000000000", "1.0", "-0", "12345678901234567890.5"]
)
def test_numbers_are_signed_as_they_were_written(number):
    text = f'{{"apiKey":"{KEY}","body":[{number}],"cmd":"pub"}}'
    signature = hmac.digest(SECRET.encode(), text.encode(), sha256).hex()
    raw = f'{{ "cmd": "pub", "body": [{number}], "signature": "{signature}", "apiKey": "{KEY}" }}'
    assert verify(json.loads(raw), SECRET, raw=raw)
    assert not verify(json.loads(raw), SECRET, raw=raw.replace(number, number + "1"))


def test_every_change_is_noticed():
    whole = signed({"cmd": "pub", "mq": "A", "body": {"x": [1, 2]}, "id": "1"}, KEY, SECRET)
    changes = [
        {**whole, "mq": "B"},
        {**whole, "body": {"x": [2, 1]}},
        {**whole, "body": {"x": [1, 2], "y": 0}},
        {**whole, "id": 1},
        {**whole, "apiKey": "other"},
        {**whole, "ack": False},
        {name: value for name, value in whole.items() if name != "id"},
    ]
    assert verify(whole, SECRET)
    assert not any(verify(changed, SECRET) for changed in changes)
    assert not verify(whole, SECRET + " ")


@pytest.mark.parametrize(
    "signature", [None, 1, "", "x", "Ł" * 64, "\ud800", ["a"], {"a": 1}, "c5a7", "0" * 64, "0" * 10_000]
)
def test_what_is_no_signature_is_wrong(signature):
    assert not verify({"cmd": "ping", "apiKey": KEY, "signature": signature}, SECRET)


def test_what_cannot_be_signed_is_told():
    deep: list = []
    for _ in range(300):
        deep = [deep]
    with pytest.raises(ValueError, match="too deeply"):
        signed_text({"a": deep})
    with pytest.raises(ValueError, match="JSON has no value of the type set"):
        signed_text({"a": {1}})
    assert signed_text({"a": b"\xff"}) == b'{"a":"/w=="}'
    with pytest.raises(ValueError, match="JSON object"):
        signed_text({}, raw="[]")
    with pytest.raises(ValueError, match="too deeply"):
        signed_text({}, raw="[" * 100_000)
    assert not verify({"a": deep, "signature": "0" * 64}, SECRET)


def test_signatures_are_compared_in_constant_time(monkeypatch):
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((a, b)) or real(a, b))
    whole = signed({"cmd": "ping"}, KEY, SECRET)
    assert verify(whole, SECRET)
    assert not verify({**whole, "signature": "0" * 64}, SECRET)
    assert len(compared) == 2
    odd = {**ODD, "headers": {**ODD["headers"], "signature": "0" * 64}}
    assert not verify(odd, SECRET)
    assert len(compared) == 5, "each text is compared, whatever the others say"
    assert all(type(a) is bytes for pair in compared for a in pair)


ODD = {
    "headers": {"cmd": "route", "id": "1", "mqType": None},
    "status": 200,
    "body": [None, {"z": None, "a": "ż\u2028\x7f/\n😀"}],
}


@pytest.mark.parametrize("request_", [ODD, ODD | {"body": None}, {"cmd": "pub", "\uffff": 1, "\U00010000": None}])
def test_python_clients_sign_what_json_dumps_writes(request_):
    text = signed_text(request_, KEY, writing=PYTHON).decode()
    held = dict(request_)
    if "headers" in held:
        held["headers"] = {**held["headers"], "apiKey": KEY}
    else:
        held["apiKey"] = KEY
    assert text == json.dumps(held, separators=(",", ":"), sort_keys=True)


def test_javascript_clients_sign_nulls():
    body = '"body":[null,{"a":"ż\u2028\x7f/\\n😀","z":null}]'
    head = f'"headers":{{"apiKey":"{KEY}","cmd":"route","id":"1","mqType":null}}'
    assert signed_text(ODD, KEY, writing=JAVASCRIPT).decode() == f'{{{body},{head},"status":200}}'


@pytest.mark.parametrize("writing", [JAVASCRIPT, PYTHON], ids=["js", "python"])
def test_each_text_of_released_clients_is_right(writing):
    digits = hmac.digest(SECRET.encode(), signed_text(ODD, KEY, writing=writing), sha256).hex()
    whole = {**ODD, "headers": {**ODD["headers"], "apiKey": KEY, "signature": digits}}
    assert verify(whole, SECRET)
    assert verify(whole, SECRET, raw=json.dumps(whole))
    assert not verify({**whole, "body": [None, {"z": None, "a": "z"}]}, SECRET)
    assert not verify(whole, SECRET + " ")
