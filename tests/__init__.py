"""The tests mirror the packages of src/busway; helpers of several tests are in support."""

import pytest

pytest.register_assert_rewrite("tests.support")
