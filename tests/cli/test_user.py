"""`busway user` and `serve --users`: edits of the users file, decisions, and clients that log in."""

import json
import stat
import time
from pathlib import Path

import pytest

import busway
from busway.authority.users_file import read_users


@pytest.fixture
def users(tmp_path: Path, shell) -> Path:
    path = tmp_path / "users.toml"
    shell.environment["BUSWAY_USERS"] = str(path)
    return path


async def test_a_user_is_added_shown_and_removed(shell, users):
    added = await shell.run("user", "add", "alice", "--allow", "all desk/{user}/**", "--deny", "publish desk/*/x")
    assert (added.code, added.out) == (0, b"")
    assert stat.S_IMODE(users.stat().st_mode) == 0o600
    assert (await shell.run("user", "list")).lines == ["alice  by nothing"]
    shown = await shell.run("user", "show", "alice")
    assert shown.lines == ["alice  logs in by nothing", "  allow  all desk/alice/**", "  deny   publish desk/*/x"]
    record = json.loads((await shell.run("user", "show", "alice", "--json")).out)
    assert record["grants"][0] == {"grant": "all desk/alice/**", "allow": True, "role": None}
    assert (await shell.run("user", "remove", "alice")).code == 0
    assert read_users(users).users == {}


async def test_comments_and_order_of_the_file_stay(shell, users):
    users.write_text('# ours\n[roles.r]\nallow = [\n  "publish a",  # only this\n]\n\n[users.bob]\nroles = ["r"]\n')
    await shell.run("user", "add", "alice", "--role", "r")
    assert users.read_text().startswith('# ours\n[roles.r]\nallow = [\n  "publish a",  # only this\n]')
    assert list(read_users(users).users) == ["bob", "alice"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("add", "a b"), "name of a user"),
        (("add", "bob", "--role", "none"), "there is no role 'none'"),
        (("add", "bob", "--allow", "publsh a"), "is no verb"),
        (("show", "bob"), "there is no user 'bob'"),
        (("remove", "bob"), "there is no user 'bob'"),
        (("password", "bob"), "there is no user 'bob'"),
        (("may", "alice", "fly", "a"), "is no verb"),
    ],
)
async def test_mistakes_change_nothing(shell, users, arguments, text):
    users.write_text("[users.alice]\n")
    done = await shell.run("user", *arguments)
    assert done.code == 2
    assert text in done.notes
    assert users.read_text() == "[users.alice]\n"


async def test_a_decision_is_explained_and_is_the_exit_code(shell, users):
    users.write_text('[users.alice]\nallow = ["publish a/**"]\n')
    yes = await shell.run("user", "may", "alice", "publish", "a/b")
    assert (yes.code, yes.lines) == (0, ["alice may publish a/b: allowed by 'publish a/**' of the user"])
    no = await shell.run("user", "may", "alice", "read", "a/b")
    assert (no.code, no.lines) == (5, ["alice may not read a/b: no grant covers it"])


async def test_clients_log_in_by_password_and_key(shell, users, tmp_path):
    secret = tmp_path / "password"
    secret.write_text("secret\n")
    await shell.run("user", "add", "alice", "--allow", "publish a")
    await shell.run("user", "password", "alice", "--password-file", str(secret))
    key = tmp_path / "alice.key"
    assert (await shell.run("user", "key", "alice", "--out", str(key))).code == 0
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert (await shell.run("user", "key", "alice", "--out", str(key))).code == 2  # never replaced
    async with busway.serve("tcp://127.0.0.1:0", users=users) as server:
        to = ("--url", server.addresses[0], "--user", "alice")
        assert (await shell.run("pub", "a", "x", *to, "--password-file", str(secret))).code == 0
        assert (await shell.run("pub", "a", "x", *to, "--key-file", str(key))).code == 0
        denied = await shell.run("pub", "b", "x", *to, "--key-file", str(key))
        assert (denied.code, 'may not publish "b"' in denied.notes) == (5, True)
        assert (await shell.run("pub", "a", "x", *to)).code == 5
        assert (await shell.run("pub", "a", "x", "--url", server.addresses[0])).code == 5


async def test_a_token_for_tests(shell, users, tmp_path):
    await shell.run("user", "add", "issuer")
    await shell.run("user", "key", "issuer", "--out", str(tmp_path / "issuer.key"))
    jwks = tmp_path / "jwks.json"
    made = await shell.run(
        *("user", "token", "alice", "--key", str(tmp_path / "issuer.key"), "--role", "r", "--expires", "1m"),
        *("--jwks", str(jwks), "--json"),
    )
    record = json.loads(made.out)
    assert 0 < record["expires"] - time.time() <= 60
    users.write_text('[roles.r]\nallow = ["publish a"]\n[tokens]\njwks = "jwks.json"\naudience = "busway"\n')
    (tmp_path / "token").write_text(record["token"])
    async with busway.serve("tcp://127.0.0.1:0", users=users) as server:
        to = ("--url", server.addresses[0], "--token-file", str(tmp_path / "token"))
        assert (await shell.run("pub", "a", "x", *to)).code == 0


async def test_serve_reports_an_invalid_file(shell, users):
    users.write_text("[users.alice]\nallow = ['publsh a']\n")
    done = await shell.run("serve", "--users", str(users), "--tcp", "127.0.0.1:0")
    assert done.code == 2
    assert "line 2" in done.notes
