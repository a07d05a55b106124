"""The list of servers: as an argument, on the command line, in servers.json, in that order."""

import json

import pytest

from busway.cluster.members.servers_file import Listed, ServersError, address_of, chosen, listed, read_file, span


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("3010", "tcp://127.0.0.1:3010"),
        ("srv1:3010", "tcp://srv1:3010"),
        ("srv1", "tcp://srv1:7420"),
        ("[::1]:3010", "tcp://[::1]:3010"),
        ("::1", "tcp://[::1]:7420"),
        ("tls://srv1:3010", "tls://srv1:3010"),
        ("unix:/run/bus", "unix:/run/bus"),
    ],
)
def test_a_server_of_the_list(text, address):
    assert address_of(text) == address


@pytest.mark.parametrize("text", ["srv1:port", "http://srv1:80", "srv1:70000", "tcp://a:1/path", "memory:x"])
def test_what_is_no_server_is_told(text):
    with pytest.raises(ServersError, match="not a server"):
        address_of(text)


def test_a_list_with_commas_as_the_command_line_has_it():
    assert [one.address for one in listed("srv1:1,srv2:2,3")] == ["tcp://srv1:1", "tcp://srv2:2", "tcp://127.0.0.1:3"]
    assert [one.address for one in listed(["srv1:1,srv2:2", "3", "srv1:1"])] == [
        *("tcp://srv1:1", "tcp://srv2:2", "tcp://127.0.0.1:3")
    ]


def entry(**changes):
    connection = {"host": "host1", "port": 3010, "reconnectSchedule": "0D00:01", **changes.pop("connection", {})}
    return {
        "name": "srv1",
        "enabled": True,
        "address": {"region": "emea", "host": "host1"},
        "connection": connection,
        **changes,
    }


@pytest.fixture
def write(tmp_path):
    def write(entries):
        path = tmp_path / "servers.json"
        path.write_text(entries if isinstance(entries, str) else json.dumps(entries))
        return path

    return write


def test_servers_json(write):
    path = write(
        [
            entry(),
            entry(name="srv2", connection={"port": 3011, "reconnectSchedule": ["100ms", "1s", 10], "timeout": "2s"}),
            entry(name="off", enabled=False, connection={"port": 1}),
            entry(name="secure", connection={"url": "tls://host1:7421", "reconnectSchedule": None}),
        ]
    )
    fields = {"region": "emea", "host": "host1"}
    assert read_file(path) == [
        Listed("tcp://host1:3010", "srv1", (60.0,), 5.0, fields),
        Listed("tcp://host1:3011", "srv2", (0.1, 1.0, 10.0), 2.0, fields),
        Listed("tls://host1:7421", "secure", fields=fields),
    ]


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ("", r"servers.json is empty; write \[\] for no servers"),
        (" \n", "is empty"),
        ("[\n{,", "servers.json is not valid JSON: line 2, column 2: "),
        ("[" * 100_000, "servers.json"),
        ({}, r"servers.json: a list \[…\] is expected, not an object \{…\}$"),
        ([{"name": "x"}], r"servers.json, entry 1 \(x\): 'connection' is missing$"),
        ([entry(), 5], r", entry 2: an object \{…\} is expected, not a whole number$"),
        (
            [entry(), entry(name="b", connection={"port": "1"})],
            r", entry 2 \(b\): connection.port: a whole number is expected, not a text$",
        ),
        ([entry(enabled="yes")], r"entry 1 \(srv1\): enabled: true or false is expected, not a text$"),
        ([entry(name=7)], "entry 1: name: a text is expected, not a whole number$"),
        ([entry(connection={"port": 0})], "0 is not a valid port"),
        ([entry(connection={"url": "tcp://host1:0"})], "no server can be reached at port 0"),
        ([entry(connection={"port": None})], r"entry 1 \(srv1\): connection: needs a port"),
        ([entry(connection={"port": 70000})], "70000 is not a valid port"),
        ([entry(connection={"reconnectSchedule": "soon"})], "not a time span: 'soon'"),
        ([entry(connection={"reconnectSchedule": []})], "at least one delay"),
        ([entry(connection={"reconnectSchedule": [0]})], r"entry 1 \(srv1\): .* must be at least 10ms, not 0 s"),
        ([entry(connection={"reconnectSchedule": "9ms"})], "must be at least 10ms"),
        ([entry(), entry()], r"entry 2 \(srv1\): tcp://host1:3010 is in the list twice"),
    ],
)
def test_a_file_that_is_wrong_says_where(write, entries, said):
    with pytest.raises(ServersError, match=said):
        read_file(write(entries))


def test_the_first_attempts_may_be_at_once(write):
    (server,) = read_file(write([entry(connection={"reconnectSchedule": [0, 0, "10ms"]})]))
    assert server.reconnect == (0, 0, 0.01)
    with pytest.raises(ValueError, match="at least one delay"):
        Listed("tcp://a:1", reconnect=())


def test_settings_that_are_not_known_are_told_once(write, caplog):
    misspelt = entry(connection={"reconnectShedule": "1s", "compress": True, "Timeout": "1s"}, Enabled=False)
    path = write([misspelt, entry(name="srv2", connection={"port": 3011, "reconnectShedule": "1s"})])
    assert len(read_file(path)) == 2
    (told,) = caplog.messages
    assert told == (
        f"{path}: unknown settings: 'Enabled' (is 'enabled' meant?), 'Timeout' (is 'timeout' meant?), 'compress', "
        "'reconnectShedule' (is 'reconnectSchedule' meant?)"
    )
    caplog.clear()
    read_file(write([entry()]))
    assert not caplog.messages


def test_a_name_that_several_have_is_told_once(write, caplog):
    path = write([entry(connection={"port": port}) for port in (1, 2, 3)] + [entry(name="", connection={"port": 4})])
    assert len(read_file(path)) == 4
    assert caplog.messages == [f"{path}: 3 servers have the name 'srv1'; give each its own name"]
    caplog.clear()
    read_file(write([entry(), entry(enabled=False)]))
    assert not caplog.messages


@pytest.mark.parametrize("text", ["0", "host1:0", "1,tcp://host1:0"])
def test_nobody_can_be_reached_at_port_0(text):
    with pytest.raises(ServersError, match="at port 0"):
        listed(text)


def test_a_list_that_names_nobody():
    for text in (",,,", " , "):
        with pytest.raises(ServersError, match="names no server"):
            listed(text)
    assert listed("") == [], "which is no list"


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ServersError, match="can't read"):
        read_file(tmp_path / "none.json")


def test_the_argument_counts_before_the_command_line_and_that_before_the_file(write):
    path = write([entry()])
    assert [one.address for one in chosen(["1"], "2", path)] == ["tcp://127.0.0.1:1"]
    assert [one.address for one in chosen(None, "2", path)] == ["tcp://127.0.0.1:2"]
    assert [one.address for one in chosen(None, None, path)] == ["tcp://host1:3010"]
    assert chosen([], "2", path) == []
    assert chosen(None, None, None) == []


@pytest.mark.parametrize(
    ("text", "seconds"), [("0D00:01", 60), ("1D02:03:04.5", 93784.5), ("00:00:10", 10), (2.5, 2.5)]
)
def test_time_spans_as_the_file_writes_them(text, seconds):
    assert span(text) == seconds
