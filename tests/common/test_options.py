"""Options by TypedDict: what help() and callers see of them."""

import inspect
from typing import TypedDict, Unpack

import pytest

import busway
from busway.common.options import takes_options


class Size(TypedDict, total=False):
    width: int
    height: int


class Paint(Size, total=False):
    color: str


def draw(name: str, *, color: str = "red", width: int = 1, height: int = 2, secret: bool = False) -> tuple[object, ...]:
    return name, color, width, height, secret


@takes_options(draw)
def frame(name: str, *, lines: int = 3, **options: Unpack[Paint]) -> tuple[object, ...]:
    """Draw a frame."""
    return *draw(name, **options), lines


@takes_options(frame)
def box(name: str, **options: Unpack[Size]) -> tuple[object, ...]:
    return frame(name, color="blue", **options)


def test_options_are_shown_as_keywords_with_the_defaults_of_the_target() -> None:
    parameters = inspect.signature(frame).parameters
    assert list(parameters) == ["name", "lines", "width", "height", "color"]
    assert {name: one.default for name, one in parameters.items()} == {
        "name": inspect.Parameter.empty,
        "lines": 3,
        "width": 1,
        "height": 2,
        "color": "red",
    }
    assert parameters["color"].annotation is str
    assert inspect.getfullargspec(frame).kwonlyargs == ["lines", "width", "height", "color"]
    assert (frame.__name__, frame.__doc__) == ("frame", "Draw a frame.")


def test_a_target_may_take_options_itself() -> None:
    assert str(inspect.signature(box)) == "(name: str, *, width: int = 1, height: int = 2) -> tuple[object, ...]"
    assert box("b", height=5) == ("b", "blue", 1, 5, False, 3)


@pytest.mark.parametrize("wrong", ["color", "secret", "lines", "nothing"])
def test_other_keywords_are_refused_by_name(wrong: str) -> None:
    with pytest.raises(TypeError, match=rf"^box\(\) got an unexpected keyword argument '{wrong}'$"):
        box("b", **{wrong: 1})


def test_without_a_target_each_default_is_none() -> None:
    @takes_options()
    def change(name: str, **options: Unpack[Size]) -> dict[str, int]:
        return dict(options)

    assert str(inspect.signature(change)) == "(name: str, *, width: int = None, height: int = None) -> dict[str, int]"
    assert change("x", height=1) == {"height": 1}
    with pytest.raises(TypeError, match="unexpected keyword argument 'color'"):
        change("x", color="red")


async def test_an_async_function_stays_one() -> None:
    @takes_options(frame)
    async def paint(name: str, **options: Unpack[Size]) -> tuple[object, ...]:
        return frame(name, **options)

    assert inspect.iscoroutinefunction(paint)
    assert await paint("x", height=1) == ("x", "red", 1, 1, False, 3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'color'"):
        await paint("x", color="red")


def test_options_without_a_default_in_the_target_are_a_mistake() -> None:
    def unfit(**options: Unpack[Paint]) -> None: ...

    with pytest.raises(KeyError, match="color"):
        takes_options(box)(unfit)


VERBS = {
    busway.connect: "*urls reconnect jitter tls identity learn",
    busway.serve: "*addresses http cluster servers key insecure",
    busway.Server.connect: "name reconnect identity",
    busway.Bus.subscribe: "pattern below where since handler policy limit_bytes scope wait",
    busway.Bus.channel: "stream name channel window start lease backoff order_by handler concurrency max_processing",
    busway.Bus.create_channel: "stream name start lease max_deliveries where",
    busway.Bus.serve: "topic handler ask shared concurrency scope wait",
    busway.Bus.dead_letters: "stream channel last topic reason since redriven",
    busway.Channel.redrive: "letters topic reason since progress",
}


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__qualname__)
def test_help_of_a_verb_has_its_keywords(verb: object) -> None:
    shown = str(inspect.signature(verb)).split(" -> ")[0]
    assert "**" not in shown.replace("'**'", "")
    for word in VERBS[verb].split():
        assert f"{word}:" in shown
    assert inspect.getdoc(verb)
