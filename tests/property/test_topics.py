"""The native matcher agrees with ten-line models."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from busway import _core, errors
from tests.support import model, regular
from tests.support.strength import examples

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "topics.json").read_text())

segment = st.sampled_from(["a", "b", "ab", "*", "**"])
patterns = st.lists(segment, max_size=6).map("/".join)


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: f"{case['subscribe']} {case['publish']}")
def test_vectors(case: dict[str, object]) -> None:
    assert _core.matches(str(case["subscribe"]), str(case["publish"])) is case["match"]
    assert _core.matches(str(case["publish"]), str(case["subscribe"])) is case["match"]


@pytest.mark.parametrize("topic", VECTORS["valid"], ids=repr)
def test_valid(topic: str) -> None:
    assert _core.check_topic(topic) == _core.check_pattern(topic) == topic.removeprefix("/")


@pytest.mark.parametrize("topic", [*VECTORS["invalid"], "a/\n", "\x7f", "a\x9fb", "a/**b", "**a/b"], ids=repr)
def test_invalid(topic: str) -> None:
    for check in (_core.check_topic, _core.check_pattern):
        with pytest.raises(errors.InvalidTopic):
            check(topic)


@pytest.mark.parametrize("topic", ["*", "a/**", "a/*/b"])
def test_wildcards_can_be_forbidden(topic: str) -> None:
    with pytest.raises(errors.InvalidTopic) as caught:
        _core.check_topic(topic, wildcards=False)
    assert caught.value.code == errors.Code.WILDCARD


def test_a_hundred_thousand_random_pairs_agree_with_the_naive_matcher() -> None:
    choose = random.Random(7420)
    hits = 0
    for _ in range(100_000):
        a, b = ("/".join(choose.choices(["a", "b", "c", "*", "**"], k=choose.randint(0, 6))) for _ in "ab")
        expected = model.matches(a, b)
        hits += expected
        assert _core.matches(a, b) is expected, (a, b)
        assert _core.matches(b, a) is expected, (b, a)
    assert 10_000 < hits < 90_000  # the sample says something about both answers


@given(patterns, patterns)
@settings(max_examples=examples(500))
def test_matches(a: str, b: str) -> None:
    assert _core.matches(a, b) == _core.matches(b, a) == model.matches(a, b)


@given(patterns, patterns)
def test_the_model_itself_agrees_with_brute_force(a: str, b: str) -> None:
    """The models are checked too: two patterns meet if and only if one small concrete topic belongs to both."""
    parts_a, parts_b = a.split("/")[:3] if a else [], b.split("/")[:3] if b else []
    letters = [one if one != "ab" else "c" for one in (*parts_a, *parts_b)]
    small_a, small_b = "/".join(letters[: len(parts_a)]), "/".join(letters[len(parts_a) :])
    both = any(model.matches(small_a, topic) and model.matches(small_b, topic) for topic in model.concrete("abcz", 5))
    assert model.matches(small_a, small_b) is both


@given(st.text(max_size=20))
@settings(max_examples=examples(500))
def test_any_text_is_a_topic_or_an_error_and_never_a_crash(text: str) -> None:
    bare = text.removeprefix("/")
    parts = bare.split("/") if bare else []
    good = all(
        part in {"*", "**"} or (part and "*" not in part and not any(control(letter) for letter in part))
        for part in parts
    )
    if good:
        assert _core.check_topic(text) == bare
    else:
        with pytest.raises(errors.InvalidTopic):
            _core.check_topic(text)


def control(letter: str) -> bool:
    return ord(letter) < 0x20 or 0x7F <= ord(letter) < 0xA0


@given(st.text(max_size=30))
def test_any_text_is_a_regular_expression_or_an_error(text: str) -> None:
    try:
        _core.check_pattern(f"re:{text}")
    except errors.InvalidTopic as error:
        assert error.code in {errors.Code.INVALID_PATTERN, errors.Code.INVALID_TOPIC}
        return
    assert _core.matches(f"re:{text}", "some/topic") in (True, False)


def expressions() -> st.SearchStrategy[tuple[str, regular.Language]]:
    """(text, language) of small regular expressions."""
    leaves = st.sampled_from(
        [(letter, regular.letters(letter)) for letter in "ab/"]
        + [(".", regular.letters("abz/")), ("[^a/]", regular.letters("bz")), ("[ab]", regular.letters("ab"))]
    )

    def grow(
        inner: st.SearchStrategy[tuple[str, regular.Language]],
    ) -> st.SearchStrategy[tuple[str, regular.Language]]:
        return st.one_of(
            st.tuples(inner, inner).map(lambda two: (two[0][0] + two[1][0], regular.seq(two[0][1], two[1][1]))),
            st.tuples(inner, inner).map(lambda two: (f"({two[0][0]}|{two[1][0]})", regular.alt(two[0][1], two[1][1]))),
            inner.map(lambda one: (f"({one[0]})*", regular.star(one[1]))),
            inner.map(lambda one: (f"({one[0]})?", regular.alt(regular.EPSILON, one[1]))),
        )

    return st.recursive(leaves, grow, max_leaves=6)


@given(expressions(), st.lists(st.sampled_from(["a", "b", "ab", "z", "*", "**"]), max_size=4))
@settings(max_examples=examples(1500))
def test_regular_expressions_against_patterns_with_wildcards(
    expression: tuple[str, regular.Language], segments: list[str]
) -> None:
    text, language = expression
    expected = regular.meets_pattern(language, segments)
    assert _core.matches(f"re:{text}", "/".join(segments)) is expected, (text, segments)
    assert _core.matches("/".join(segments), f"re:{text}") is expected, (text, segments)


def test_a_regular_expression_may_stand_on_either_side_but_not_on_both() -> None:
    assert _core.matches("re:a.*", "abc") is _core.matches("abc", "re:a.*") is True
    assert _core.matches("re:a.*", "b/*") is _core.matches("b/*", "re:a.*") is False
    with pytest.raises(errors.InvalidPattern, match="two regular expressions"):
        _core.matches("re:a", "re:a")
    for a, b in (("re:(", "a"), ("a", "re:(")):
        with pytest.raises(errors.InvalidPattern, match="regex parse error"):
            _core.matches(a, b)
    for a, b in (("re:a", "a//b"), ("a//b", "re:a")):
        with pytest.raises(errors.InvalidTopic, match="empty segment"):
            _core.matches(a, b)


@given(expressions(), st.lists(st.sampled_from(["a", "b", "*", "**"]), max_size=3))
@settings(max_examples=examples(60))
def test_the_derivatives_agree_with_brute_force(expression: tuple[str, regular.Language], segments: list[str]) -> None:
    """Whatever a small concrete topic shows, the exact model says too (the model is checked as well)."""
    import re

    text, language = expression
    compiled = re.compile(text)
    shown = any(
        compiled.fullmatch(topic) and model.matches("/".join(segments), topic) for topic in model.concrete("abz", 5)
    )
    assert not shown or regular.meets_pattern(language, segments)
