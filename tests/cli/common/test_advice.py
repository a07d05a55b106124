"""Hints for patterns in the spelling of other systems."""

import pytest

from busway.cli.common.advice import hint


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("a.b.>", "a/b/**"),
        ("a.*.c", "a/*/c"),
        ("a.#", "a/**"),
        ("a/+/#", "a/*/**"),
        ("#", "**"),
        (">", "**"),
        ("orders.eu.new", "orders/eu/new"),
    ],
)
def test_what_was_meant(theirs, ours):
    assert f"did you mean {ours!r} instead of {theirs!r}?" in hint(theirs)


@pytest.mark.parametrize(
    "topic", ["a/b/**", "*", "**", "price/*/eur", "app.log", "re:a.b.>", "v1.2/x", "a/b.c.d", "", "a"]
)
def test_topics_of_busway(topic):
    assert hint(topic) is None


@pytest.mark.parametrize("verb", ["sub", "pub"])
async def test_a_pattern_that_is_refused_has_it_too(shell, verb):
    done = await shell.run(verb, "orders.*")
    assert done.code == 2
    assert "did you mean 'orders/*'" in " ".join(done.notes.replace("│", " ").split())


async def test_sub_and_pub_print_it_and_go_on(shell):
    done = await shell.run("sub", "a.b.>", "--for", "10ms")
    first, second = done.notes.splitlines()
    assert "did you mean 'a/b/**'" in first
    assert second.startswith("subscribed to a.b.>")
    done = await shell.run("pub", "orders.eu.new", "x")
    assert (done.code, "did you mean 'orders/eu/new'" in done.notes) == (0, True)
    assert "did you mean" not in (await shell.run("sub", "a.b.>", "--for", "10ms", "-q")).notes
