"""The public names are there, and cost nothing before they are asked for."""

import subprocess
import sys

import pytest

import busway.spark


def test_each_name_is_there():
    for name in busway.spark.__all__:
        assert callable(getattr(busway.spark, name))
        assert name in dir(busway.spark)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        busway.spark.nothing  # noqa: B018


def test_nothing_is_loaded_before():
    text = "import sys, busway.spark; print([one for one in ('pyspark', 'pyarrow', 'busway.spark.lake') if one in sys.modules])"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
