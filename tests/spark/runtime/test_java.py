"""Java is found, or the error names the missing package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from busway.spark.runtime import java
from busway.spark.runtime.session import NeedsSpark, require, session, settings

ROOT = Path(__file__).resolve().parents[3]


def make_java(folder: Path, version: str, *, whole: bool = True) -> Path:
    """A folder with a program that says what `java -version` would."""
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "java"
    refusal = "" if whole else 'case "$*" in *--add-modules*) echo "Module not found" >&2; exit 1;; esac\n'
    program.write_text(f"""#!/bin/sh\n{refusal}echo 'openjdk version "{version}" 2025-04-15' >&2\n""")
    program.chmod(0o755)
    return folder


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """No Java at all."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("JAVA_HOME", raising=False)


def test_java_home_comes_before_the_path(bare, monkeypatch, tmp_path):
    named, other = make_java(tmp_path / "named", "21.0.8"), make_java(tmp_path / "other", "17.0.15")
    monkeypatch.setenv("PATH", f"{other / 'bin'}")
    assert java.find() == (other, 17, "PATH")
    monkeypatch.setenv("JAVA_HOME", str(named))
    assert java.find() == (named, 21, "JAVA_HOME")


def test_one_that_is_too_old_is_passed_over(bare, monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "old", "1.8.0_292")))
    monkeypatch.setenv("PATH", str(make_java(tmp_path / "new", "17") / "bin"))
    assert java.use() == (tmp_path / "new", 17, "PATH")
    assert os.environ["JAVA_HOME"] == str(tmp_path / "new")  # what Spark starts takes that one, too


@pytest.mark.parametrize(
    ("version", "whole", "words"),
    [
        ("1.8.0_292", True, "JAVA_HOME has Java 8"),
        ("11.0.2", True, "JAVA_HOME has Java 11"),
        ("21.0.8", False, "JAVA_HOME has Java 21 without the module jdk.incubator.vector"),
        ("nonsense", True, "JAVA_HOME has no Java that runs"),
    ],
)
def test_what_is_wrong_with_the_one_that_is_there_is_said(bare, monkeypatch, tmp_path, version, whole, words):
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "some", version, whole=whole)))
    with pytest.raises(java.NeedsJava, match=words):
        java.find()


def test_none_at_all_names_what_to_install(bare):
    with pytest.raises(java.NeedsJava, match=r"Java 17 or newer and none is installed: .*openjdk-17-jre-headless"):
        session()


def test_missing_pyspark_names_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyspark"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(NeedsSpark, match=r"needs pyspark.*: pip install 'pyspark\[pipelines\]"):
        require()


def test_settings_of_a_local_master_stay_on_this_machine():
    made = settings("local[3]", {"spark.ui.enabled": "true"})
    assert made["spark.driver.bindAddress"] == made["spark.driver.host"] == "127.0.0.1"
    assert made["spark.sql.shuffle.partitions"] == "3"
    assert made["spark.sql.session.timeZone"] == "UTC"
    assert made["spark.ui.enabled"] == "true"


def test_settings_of_a_cluster_leave_addresses_and_sizes_to_it():
    made = settings("spark://host:7077")
    assert made["spark.master"] == "spark://host:7077"
    assert not {"spark.driver.bindAddress", "spark.driver.host", "spark.driver.memory"} & set(made)


def test_make_setup_names_a_missing_java(tmp_path):
    """As an ordinary user on a machine without Java; as root on Debian it would be installed."""
    for name in ("sed", "head", "bash"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    script, environment = ROOT / "scripts/system-packages.sh", {"PATH": str(tmp_path)}
    said = subprocess.run([script, "java"], env=environment, capture_output=True, text=True, check=True)
    assert "no Java 17 or newer" in said.stderr
    assert "java-17-openjdk-headless" in said.stderr
