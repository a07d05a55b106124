"""The tree of errors: the docstring of `busway.errors` and its page show the classes as they are."""

import inspect
import re
import textwrap
from pathlib import Path

from busway import errors

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "errors.md"


def shown() -> str:
    """The tree in the module's docstring."""
    return textwrap.dedent((errors.__doc__ or "").split("::\n\n", 1)[1].split("\n\n", 1)[0])


def test_the_page_shows_the_tree_of_the_module() -> None:
    assert re.findall(r"```text\n(BusError.*?)\n```", PAGE.read_text(), re.DOTALL) == [shown()]


def test_the_tree_has_every_error_below_its_base() -> None:
    path: list[str] = []
    found: dict[str, str] = {}
    for line in shown().splitlines():
        depth, name = len(line) - len(line.lstrip(" │├└─")), re.findall(r"[A-Z]\w+", line)[0]
        del path[depth // 4 :]
        if path:
            found[name] = path[-1]
        path.append(name)
    classes = [one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, errors.BusError)]
    assert found == {one.__name__: one.__bases__[0].__name__ for one in classes if one is not errors.BusError}
