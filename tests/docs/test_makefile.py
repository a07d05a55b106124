"""The targets of the Makefile, as plans (`make -n`), and the scripts that they call, as processes."""

import os
import pty
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SYSTEM = ROOT / "scripts/system-packages.sh"
HEARTBEAT = ROOT / "scripts/heartbeat.sh"


def plan(tmp_path: Path, *words: str) -> str:
    """The commands that make would run where nothing is installed yet."""
    asked = ["make", "-n", f"VENV={tmp_path}/venv", *words]
    plain = {name: text for name, text in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "PYTEST"))}
    return subprocess.run(asked, cwd=ROOT, env=plain, capture_output=True, text=True, check=True, timeout=60).stdout


def pins(lock: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9._-]+(?:\[[a-z,]+\])?)==(\S+)", (ROOT / lock).read_text(), re.MULTILINE))


def test_run_installs_only_what_serving_needs(tmp_path):
    made = plan(tmp_path, "run")
    assert "--requirement requirements-serve.lock" in made
    assert "--requirement requirements.lock" not in made
    assert "system-packages.sh" not in made


def test_run_stores_its_data_in_the_checkout_and_says_so(tmp_path):
    made = plan(tmp_path, "run")
    assert "serve --data .busway " in made
    assert 'echo "data is stored in .busway' in made
    assert "/.busway/" in (ROOT / ".gitignore").read_text().splitlines()


def test_clean_leaves_the_data(tmp_path):
    assert not re.search(r"rm .*\.busway", plan(tmp_path, "clean"))


@pytest.mark.parametrize("target", ["run", "test", "check", "demo"])
def test_pip_and_cargo_are_not_silenced(tmp_path, target):
    made = plan(tmp_path, target)
    for command in re.findall(r".*(?:pip install|maturin develop).*", made):
        assert "heartbeat.sh" in command
        assert "--quiet" not in command
        assert ">" not in command


@pytest.mark.parametrize("target", ["test", "check", "demo", "bench", "simulate", "setup"])
def test_other_targets_install_the_rest(tmp_path, target):
    assert "--requirement requirements.lock" in plan(tmp_path, target)


def test_lock_for_serving_is_a_small_part_of_the_whole_lock():
    serving, whole = pins("requirements-serve.lock"), pins("requirements.lock")
    assert {"maturin", "typer", "rich", "aiohttp", "picows", "msgspec"} <= set(serving)
    assert serving.items() <= whole.items()
    assert not {"pyspark", "pytest", "mypy", "ruff", "pyarrow", "nats-py", "eclipse-zenoh"} & set(serving)


def test_maturin_finds_no_group_to_install_beside_the_engine():
    """`maturin develop` installs the group `dev`, if there is one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "dev" not in project["dependency-groups"]


def test_narrowed_tests_leave_cargo_out_unless_it_is_asked_for(tmp_path):
    assert "cargo test" in plan(tmp_path, "test")
    assert "cargo test" not in plan(tmp_path, "test", "PYTEST=-k topic")
    assert re.search(
        r"cargo test .* topic$", plan(tmp_path, "test", "PYTEST=-k topic", "CARGO_TEST=topic"), re.MULTILINE
    )


def test_system_packages_come_after_a_decision(tmp_path):
    assert "SYSTEM=ask scripts/system-packages.sh postgresql java" in plan(tmp_path, "test")
    assert "SYSTEM=no scripts/system-packages.sh postgresql java" in plan(tmp_path, "test", "SYSTEM=no")


@pytest.fixture
def machine(tmp_path):
    """A machine of root with apt-get, without anything else: what apt-get is asked for is in apt.log."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "sed", "head", "cat", "chmod"):
        (folder / name).symlink_to(f"/usr/bin/{name}")
    programs = {
        "id": "echo 0",
        "apt-cache": "true",
        "apt-get": f'echo "apt-get $*" | {folder}/cat >> {tmp_path}/apt.log; echo "APT $*" >&2\n'
        f'case "$*" in *curl) echo > {folder}/curl; {folder}/chmod +x {folder}/curl ;; esac',
    }
    for name, text in programs.items():
        (folder / name).write_text(f"#!{folder}/bash\n{text}\n")
        (folder / name).chmod(0o755)
    return folder


def ask_for(machine: Path, *needs: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SYSTEM, *needs],
        env={"PATH": str(machine), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_packages_are_listed_before_they_are_installed(machine, tmp_path):
    done = ask_for(machine, "curl")
    assert done.returncode == 0, done.stderr
    listed, said, rest = done.stderr.partition("APT update")
    assert said
    assert "about to install these system packages (SYSTEM=no leaves them out)" in listed
    assert re.search(r"^  curl +no curl, which the test of docs/howto/json.md runs$", listed, re.MULTILINE)
    assert "APT install --yes --no-install-recommends curl" in rest


def test_no_installs_nothing_and_names_what_is_missing(machine, tmp_path):
    done = ask_for(machine, "curl", "java", "chromium", SYSTEM="no")
    assert done.returncode == 0
    assert not (tmp_path / "apt.log").exists()
    assert "what needs them will fail (SYSTEM=no installs nothing)" in done.stderr
    for package in ("curl", "openjdk-17-jre-headless", "chromium"):
        assert f"\n  {package} " in done.stderr


def test_on_a_terminal_the_answer_counts(machine, tmp_path):
    here, there = pty.openpty()
    with subprocess.Popen(
        [SYSTEM, "curl"], env={"PATH": str(machine)}, stdin=there, stdout=there, stderr=there
    ) as process:
        os.close(there)
        os.write(here, b"n\n")
        assert process.wait(60) == 0
        said = os.read(here, 4096).decode()
    os.close(here)
    assert "Install them? [Y/n]" in said
    assert "you said no" in said
    assert not (tmp_path / "apt.log").exists()


def test_a_package_that_brings_no_program_is_an_error(machine):
    done = ask_for(machine, "chromium")
    assert done.returncode == 1
    assert "these are still not found:\n  chromium" in done.stderr


def test_what_is_there_is_not_announced(machine, tmp_path):
    (machine / "curl").symlink_to("/usr/bin/true")
    done = ask_for(machine, "curl")
    assert (done.returncode, done.stderr) == (0, "")


def test_an_ordinary_user_reads_the_command(machine, tmp_path):
    (machine / "id").write_text(f"#!{machine}/bash\necho 1000\n")
    done = ask_for(machine, "curl", "fuse")
    assert "sudo apt-get install curl fuse3 attr gcc libc6-dev g++ pkg-config libfuse3-dev" in done.stderr
    assert not (tmp_path / "apt.log").exists()


@pytest.mark.parametrize("words", [["cobol"], ["curl", "SYSTEM=maybe"]], ids=["need", "answer"])
def test_unknown_words_are_refused(machine, words):
    needs = [word for word in words if "=" not in word]
    more = dict(word.split("=") for word in words if "=" in word)
    done = ask_for(machine, *needs, **more)
    assert done.returncode == 2
    assert done.stderr.strip()


def test_heartbeat_speaks_for_a_silent_command_and_keeps_its_status():
    asked = [HEARTBEAT, "thinking", "bash", "-c", "sleep 1; echo done; exit 7"]
    done = subprocess.run(
        asked, env=os.environ | {"HEARTBEAT": "0.2"}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 7
    assert done.stdout == "done\n"
    assert re.match(r"(thinking: \d+ s so far\n){2}", done.stderr)
