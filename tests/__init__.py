"""The tests mirror the packages of src/busway; what several of them need is in support."""

import pytest

pytest.register_assert_rewrite("tests.support")
