"""The smaller machines: lines of a topic, names and paths of topics, the registry."""

import errno

import pytest
from hypothesis import given, strategies as st

import busway
from busway.gateway.files.fusebus.registry import Registry
from busway.gateway.files.topics import names
from busway.gateway.files.topics.lines import LineParser, Lines, Reader
from busway.gateway.files.topics.tree import Paths
from busway.gateway.message_json import of_object
from tests.support.fusebus_client import refused


@given(st.lists(st.binary(max_size=20), max_size=40), st.integers(1, 100))
def test_lines_are_a_file_that_is_cut_at_its_beginning(given_lines, limit):
    lines, everything = Lines(limit), b""
    for one in given_lines:
        lines.add(one + b"\n")
        everything += one + b"\n"
        assert lines.end == len(everything)
        assert lines.read(lines.base, 1 << 20) == everything[lines.base :]
        assert lines.end - lines.base <= max(limit, len(one) + 1)
    lines.rewind()
    assert lines.size == lines.end - lines.base


@given(st.lists(st.binary(max_size=30), max_size=20))
def test_written_lines_are_cut_wherever_a_write_ends(writes):
    written, found = LineParser(1000), []
    for one in writes:
        found += written.add(one)
    assert b"\n".join([*found, written.finish()]) == b"".join(writes)
    assert written.finish() == b""


def test_a_line_that_is_too_long_takes_nothing_of_its_write():
    written = LineParser(4)
    assert written.add(b"ab") == []
    with refused(errno.EMSGSIZE):
        written.add(b"c\nabcde\n")
    assert written.refused == 2
    assert written.add(b"c\n") == [b"c"]
    assert written.finish() == b""


def test_the_rest_of_a_line_that_is_too_long_is_thrown_away():
    written = LineParser(4)
    with refused(errno.EMSGSIZE):
        written.add(b"abcde")
    with refused(errno.EMSGSIZE):
        written.add(b"f")
    assert written.refused == 1
    assert written.add(b"g\nhi\nj") == [b"hi"]
    assert written.finish() == b"j"


def test_a_descriptor_that_is_closed_ends_a_line_that_is_too_long():
    written = LineParser(4)
    with refused(errno.EMSGSIZE):
        written.add(b"abcde")
    assert written.finish() == b""
    assert written.add(b"next\n") == [b"next"]


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 40)), max_size=60),
    st.integers(1, 60),
)
def test_a_reader_gets_whole_lines_and_knows_how_many_it_did_not(steps, limit):
    """Lines are numbered; between reads of some bytes some more are written, of which the oldest go."""
    lines = Lines(limit)
    reader, got, written, only_its_end = Reader(lines, 0), b"", 0, 0
    for size, more in [*steps, (1 << 20, 0), (1 << 20, 0)]:
        for _ in range(more):
            lines.add(b"<%d>\n" % written)
            written += 1
        missed = reader.missed
        data = reader.read(reader.position, size)[1]
        only_its_end += reader.missed > missed and got.endswith(b">")  # of which nothing else was gone
        got += data
    assert got == b"" or got.endswith(b"\n")
    whole = [line for line in got.split(b"\n") if line.startswith(b"<") and line.endswith(b">")]
    numbers = [int(line[1:-1]) for line in whole]
    assert numbers == sorted(set(numbers))
    assert len(numbers) + reader.missed == written + only_its_end
    parts = set(got.split(b"\n")) - {b"", *whole}
    everything = [b"<%d>" % number for number in range(written)]
    assert all(any(one.startswith(part) for one in everything) for part in parts)


def test_who_reads_from_the_start_again_misses_nothing():
    lines = Lines(8)
    reader = Reader(lines, 0)
    for number in range(10):
        lines.add(b"<%d>\n" % number)
        reader.read(0, 100)
    assert (reader.missed, reader.read(0, 100)[1]) == (0, b"<8>\n<9>\n")


@pytest.mark.parametrize(
    ("folder", "name", "topic"),
    [
        ("", "price", "price"),
        ("price", "eth", "price/eth"),
        ("", "price%2Feth", "price/eth"),
        ("", "100%", "100%"),
        ("", "100%25", "100%"),
        ("a", "%2e", "a/."),
        ("a", "*", "a/*"),
        ("", "**", "**"),
        ("", "re:x", "re:x"),
        ("", "größe", "größe"),
    ],
)
def test_names_and_their_topics(folder, name, topic):
    assert names.topic_of(folder, name) == topic
    assert busway.topic.check_topic("/" + topic) == topic


@pytest.mark.parametrize("name", ["%2F", "a%2F%2Fb", "%00", "a%0Ab", "x*", "$bus", "$bus%2Finfo", "\udcff"])
def test_names_that_are_none(name):
    with refused(errno.ENOENT):
        names.topic_of("", name)


@given(st.text(st.characters(exclude_categories=["C"], exclude_characters="/*"), min_size=1, max_size=20))
def test_every_segment_has_a_name(segment):
    assert names.topic_of("", names.name_of(segment)) == segment
    beside_a_folder = names.name_of(segment, topic=True)
    assert names.topic_of("", beside_a_folder) == segment
    assert names.is_escaped(beside_a_folder)


def test_a_name_that_is_too_long_to_be_listed():
    assert names.name_of("x" * 255) == "x" * 255
    assert names.name_of("x" * 256) is None
    assert names.name_of("ż" * 128) is None


def test_paths():
    paths = Paths()
    paths.add("a/b/c")
    assert paths.is_folder("a")
    assert paths.is_folder("a/b")
    assert not paths.is_folder("a/b/c")
    assert paths.has("a/b/c")
    assert not paths.has("a/b")
    assert not paths.has("x/y")
    with refused(errno.EEXIST):
        paths.make("a")
    with refused(errno.ENOENT):
        paths.make("x/y")
    paths.make("x")
    assert (sorted(paths.folders("")), list(paths.topics("a/b"))) == (["a", "x"], ["c"])
    with refused(errno.ENOTEMPTY):
        paths.remove("a")
    with refused(errno.ENOENT):
        paths.remove("a/b/c")
    paths.add("x")
    paths.discard("a/b/c")
    for path in ("a/b", "a", "x"):
        paths.remove(path)
    assert paths.has("x")
    paths.discard("x")
    with refused(errno.ENOENT):
        paths.discard("x")
    with refused(errno.ENOENT):
        paths.remove("a")
    assert not list(paths.folders(""))


@given(st.lists(st.binary(max_size=20) | st.sampled_from([b"A\nB\n", b"A", b"B\n\n", b"C\n"]), max_size=20))
def test_the_registry_takes_all_names_of_a_write_or_none(writes):
    registry = Registry(3)
    for one in writes:
        before = registry.text
        try:
            unknown = registry.unknown(one)
        except OSError as error:
            assert error.errno in {errno.EINVAL, errno.ENOSPC}
            assert registry.text == before
            continue
        for name in unknown:
            assert registry.add(name) == len(registry) - 1
    assert registry.text == b"".join(name.encode() + b"\n" for name in registry)
    assert len(registry) <= 3
    assert all(registry.number(name) == number for number, name in enumerate(registry))


@pytest.mark.parametrize(
    ("line", "payload", "fields"),
    [
        (b'{"payload": "x"}', b"x", {}),
        (b'{"payload": {"a": 1}, "fields": {"n": 2}}', b'{"a":1}', {"n": 2}),
        (b'{"payload_base64": "/w=="}', b"\xff", {}),
        (b"{}", b"", {}),
        (b'{"payload": null}', b"null", {}),
    ],
)
def test_objects_that_are_published(line, payload, fields):
    assert of_object(line) == (payload, fields)


@given(
    st.binary(max_size=60)
    | st.sampled_from([b"[]", b'{"x":1}', b'{"payload_base64":"?"}', b'{"payload":1,"payload_base64":""}'])
)
def test_what_is_no_object_is_refused(line):
    try:
        payload, fields = of_object(line)
    except ValueError:
        return
    assert isinstance(payload, bytes)
    assert isinstance(fields, dict)
