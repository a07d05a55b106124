"""How much of the suite runs: `make test` takes a share of the examples, `make test-all` all of them."""

import os
from typing import Final

ALL: Final = os.environ.get("BUSWAY_TEST_ALL", "") == "1"
"""Whether everything runs: each transport, and every example of the property tests."""
_SHARE: Final = 5
_LEAST: Final = 20


def examples(count: int) -> int:
    """How many examples a property test takes: all, or a fifth of them."""
    return count if ALL else max(count // _SHARE, min(count, _LEAST))
