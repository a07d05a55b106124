"""Mounts for tests: real processes on folders of their own."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.support.mounts import mounted


@pytest.fixture
def mount() -> Iterator:
    """A factory: `mount("--channels", 3)` starts `busway mount` on a folder of its own, and all are unmounted in the end.

    `verb="fusebus"` for the other command; what is given by name is its environment.
    """
    with contextlib.ExitStack() as stack:

        def start(*words, verb="mount", folder=None, **environment):
            return stack.enter_context(mounted(verb, *words, folder=folder, **environment))

        yield start
