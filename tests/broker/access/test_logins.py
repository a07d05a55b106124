"""Logins over native transports: every way to prove who a client is, and what goes wrong."""

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

import busway
from busway.authority import guesses, keys, tokens
from busway.errors import Code
from tests.support.net import Certificates, within
from tests.support.users import UsersFile


@pytest.fixture
def users(tmp_path: Path) -> UsersFile:
    return UsersFile(tmp_path / "users.toml").user("alice", ["all **", "observe $bus/**"])


async def user_of(url: str, **options: Any) -> str:
    async with busway.connect(url, timeout=10, **options) as bus:
        return str(bus.server["user"])


async def refused(url: str, **options: Any) -> busway.Forbidden:
    with pytest.raises(busway.Forbidden) as caught:
        await within(busway.connect(url, timeout=10, reconnect=None, **options).__aenter__())
    return caught.value


async def test_a_password_by_argument_file_address_or_environment(
    users: UsersFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "password"
    secret.write_text("alice\n")
    async with busway.serve("tcp://127.0.0.1:0", users=users.path) as server:
        url = server.addresses[0]
        assert await user_of(url, user="alice", password="alice") == "alice"
        assert await user_of(url, user="alice", password_file=secret) == "alice"
        assert await user_of(url.replace("//", "//alice:alice@")) == "alice"
        monkeypatch.setenv("BUSWAY_USER", "alice")
        monkeypatch.setenv("BUSWAY_PASSWORD_FILE", str(secret))
        assert await user_of(url) == "alice"
        await refused(url, user="bob")  # the password in the environment is not for others
        secret.write_text("wrong")
        await refused(url)


async def test_the_password_is_neither_sent_nor_shown(users: UsersFile) -> None:
    sent = bytearray()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = server.addresses[0].removeprefix("tcp://").split(":")
        there, back = await asyncio.open_connection(host, int(port))

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                sent.extend(data)
                sink.write(data)
            sink.close()

        await asyncio.gather(pump(reader, back), pump(there, writer))

    users.user("alice", ["all **", "observe $bus/**"], password="correct horse battery staple")
    async with busway.serve("tcp://127.0.0.1:0", users=users.path) as server:
        listener = await asyncio.start_server(relay, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        async with busway.connect(f"tcp://alice:correct%20horse%20battery%20staple@127.0.0.1:{port}") as bus:
            info = await bus.info()
            assert bus.url == f"tcp://127.0.0.1:{port}"
            assert "horse" not in f"{bus!r} {info} {bus.server}"
        listener.close()
    assert b"alice" in sent
    assert b"horse" not in sent


async def test_an_ed25519_key(users: UsersFile, tmp_path: Path) -> None:
    private = tmp_path / "alice.key"
    private.write_bytes(keys.to_pem(keys.new_private()))
    users.user("alice", ["all **"], keys=[keys.public_of(keys.read_private(private))])
    other = tmp_path / "other.key"
    other.write_bytes(keys.to_pem(keys.new_private()))
    async with busway.serve("tcp://127.0.0.1:0", users=users.path) as server:
        url = server.addresses[0]
        assert await user_of(url, user="alice", key_file=private) == "alice"
        await refused(url, user="alice", key_file=other)
        await refused(url, user="bob", key_file=private)
        missing = await refused(url, user="alice", key_file=tmp_path / "missing.key")
        assert "key file" in str(missing)


async def test_a_certificate(users: UsersFile, certificates: Certificates) -> None:
    users.user("sensor", certificates=["DNS:sensor-7.example"])
    server_tls = busway.TLS(cert=certificates.server, key=certificates.server_key, ca=certificates.ca)
    client_tls = busway.TLS(ca=certificates.ca, cert=certificates.client, key=certificates.client_key)
    async with busway.serve("tls://127.0.0.1:0", tls=server_tls, users=users.path) as server:
        url = server.addresses[0]
        assert await user_of(url, tls=client_tls) == "sensor"
        assert await user_of(url, tls=client_tls, user="sensor") == "sensor"
        await refused(url, tls=client_tls, user="alice")
        assert await user_of(url, tls=client_tls, user="alice", password="alice") == "alice"


async def test_the_user_of_the_process_at_a_unix_socket(users: UsersFile, tmp_path: Path) -> None:
    users.user("operator", uids=[os.getuid()])
    async with busway.serve(f"unix:{tmp_path / 'bus'}", "tcp://127.0.0.1:0", users=users.path) as server:
        unix, tcp = server.addresses
        assert await user_of(unix) == "operator"
        await refused(unix, user="alice")
        await refused(tcp)


@pytest.fixture
def issuer(users: UsersFile, tmp_path: Path) -> Path:
    path = tmp_path / "issuer.key"
    path.write_bytes(keys.to_pem(keys.new_private()))
    (tmp_path / "jwks.json").write_text(tokens.jwks_of(path))
    users.role("reader", ["subscribe public/**"]).table("tokens", 'jwks = "jwks.json"\naudience = "busway"\nleeway = 0')
    return path


def token(issuer: Path, user: str, seconds: float = 60, *roles: str) -> str:
    claims = {"sub": user, "aud": "busway", "exp": time.time() + seconds, "roles": list(roles)}
    return tokens.issue(issuer, claims)


async def test_a_token_brings_roles(users: UsersFile, issuer: Path, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token(issuer, "guest", 60, "reader", "unknown"))
    async with busway.serve("tcp://127.0.0.1:0", users=users.path) as server:
        url = server.addresses[0]
        async with busway.connect(url, token_file=file) as bus:
            assert bus.server["user"] == "guest"
            async with bus.subscribe("public/**"):
                with pytest.raises(busway.Forbidden):
                    await bus.publish("public/a", b"", confirm=True)
        assert await user_of(url, token=token(issuer, "alice")) == "alice"
        await refused(url, token=token(issuer, "nobody"))  # in no role
        await refused(url, token=token(issuer, "guest", -1, "reader"))
        await refused(url, user="alice", token=token(issuer, "guest", 60, "reader"))


async def test_a_session_ends_when_its_token_expires(users: UsersFile, issuer: Path) -> None:
    async with busway.serve("tcp://127.0.0.1:0", users=users.path) as server:
        bus = busway.connect(server.addresses[0], token=token(issuer, "guest", 1.5, "reader"), reconnect=[0.01])
        async with bus:
            async with asyncio.timeout(60):
                async for event in bus.events():
                    if event.kind == "closed":
                        break
            assert bus.closed


async def test_authenticate_may_name_the_user(users: UsersFile) -> None:
    async def check(caller: busway.Caller) -> bool | str:
        return "alice" if caller.credentials == "ticket" else caller.credentials != "stolen"

    async with busway.serve(
        "tcp://127.0.0.1:0", users=users.path, settings=busway.Settings(authenticate=check)
    ) as server:
        url = server.addresses[0]
        assert await user_of(url, credentials="ticket") == "alice"
        assert await user_of(url, user="alice", password="alice") == "alice"
        await refused(url, credentials="stolen", user="alice", password="alice")
        await refused(url)


async def test_an_anonymous_user_is_for_clients_that_do_not_log_in(users: UsersFile) -> None:
    users.user("anonymous", ["subscribe public/**"])
    async with busway.serve("tcp://127.0.0.1:0", users=users.path) as server:
        url = server.addresses[0]
        assert await user_of(url) == "anonymous"
        await refused(url, user="alice")
        await refused(url, user="alice", password="wrong")


async def test_names_and_sessions_belong_to_a_user(users: UsersFile) -> None:
    users.user("bob", ["all **"])
    secret = busway.settings.draw_secret()
    async with busway.serve("tcp://127.0.0.1:0", users=users.path) as server, server.connect() as root:
        url = server.addresses[0]
        async with root.subscribe("t") as got:
            for user, name, shown in (
                ("alice", "", "alice"),
                ("alice", "feed", "alice/feed"),
                ("bob", "alice/x", "bob/alice/x"),
            ):
                async with busway.connect(url, user=user, password=user, name=name) as bus:
                    await bus.publish("t", b"")
                    assert (await got.recv()).sender == shown
        identity = busway.settings.Identity(secret=secret)
        async with busway.connect(url, user="alice", password="alice", identity=identity):
            pass
        with pytest.raises(busway.BusError, match="another user"):
            await within(
                busway.connect(url, user="bob", password="bob", identity=identity, reconnect=None).__aenter__()
            )


async def test_a_pin_of_one_user_is_not_replaced_or_removed_by_another(users: UsersFile) -> None:
    users.user("bob", ["all **"])
    async with busway.serve("tcp://127.0.0.1:0", users=users.path) as server:
        url = server.addresses[0]
        async with (
            busway.connect(url, user="alice", password="alice", name="x") as alice,
            busway.connect(url, user="bob", password="bob", name="x") as bob,
        ):
            await alice.pin("config", b"of alice")
            await bob.pin("config", b"of bob")
            await bob.unpin("config")
            assert [message.payload async for message in kept(bob)] == [b"of alice"]


async def kept(bus: busway.Bus):
    for message in await bus.kept("config"):
        yield message


async def test_refusals_are_counted_logged_and_published(users: UsersFile, caplog: pytest.LogCaptureFixture) -> None:
    users.user("bob", ["publish b"])
    async with busway.serve("tcp://127.0.0.1:0", users=users.path) as server:
        url = server.addresses[0]
        async with (
            busway.connect(url, user="alice", password="alice") as alice,
            alice.subscribe("$bus/auth/**") as events,
            busway.connect(url, user="bob", password="bob") as bob,
        ):
            for _ in range(100):
                with pytest.raises(busway.Forbidden, match='may not publish "c"'):
                    await bob.publish("c", b"", confirm=True)
            event = await within(events.recv())
            assert (event.topic, event.fields["user"], event.fields["verb"], event.fields["topic"]) == (
                "$bus/auth/refused",
                "bob",
                "publish",
                "c",
            )
            assert server.stats()["forbidden"] == 100
            assert len([record for record in caplog.records if "may not publish" in record.message]) == 1
            with pytest.raises(busway.Forbidden):
                await within(bob.subscribe("$bus/auth/**").__aenter__())
        await refused(url, user="eve", password="x")


async def test_guesses_are_delayed_and_others_are_not(users: UsersFile) -> None:
    users.user("bob", ["all **"])
    async with busway.serve("tcp://127.0.0.1:0", users=users.path) as server:
        url = server.addresses[0]
        for _ in range(guesses.FREE):
            await refused(url, user="alice", password="wrong")
        started = time.monotonic()
        await refused(url, user="alice", password="wrong")
        assert time.monotonic() - started >= guesses.FIRST
        assert await user_of(url, user="bob", password="bob") == "bob"  # waits a little, and is let in


async def test_half_open_logins_are_limited_and_harm_nobody(users: UsersFile, caplog: pytest.LogCaptureFixture) -> None:
    settings = busway.Settings(logins=20)
    async with busway.serve("tcp://127.0.0.1:0", users=users.path, settings=settings) as server:
        host, port = server.addresses[0].removeprefix("tcp://").split(":")
        streams = [await asyncio.open_connection(host, int(port)) for _ in range(100)]
        assert await user_of(server.addresses[0], user="alice", password="alice") == "alice"
        assert server.stats()["connections"] <= 22
        for _, writer in streams:
            writer.close()
    assert any("have not logged in" in record.message for record in caplog.records)


def frame(kind: int, rest: bytes) -> bytes:
    return (len(rest) + 2).to_bytes(4, "little") + bytes([kind, 0]) + rest


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([1]),
        msgspec.msgpack.encode({"proof": 7}),
        msgspec.msgpack.encode({}),
        b"\x80" * 60_000,
    ],
    ids=len,
)
async def test_bad_answers_end_the_connection_only(users: UsersFile, answer: bytes) -> None:
    secret = busway.settings.draw_secret()
    hello = {
        "session": busway.settings.session_of(secret),
        "secret": secret,
        "user": "alice",
        "method": "password",
        "nonce": bytes(16),
    }
    async with busway.serve("tcp://127.0.0.1:0", users=users.path) as server:
        host, port = server.addresses[0].removeprefix("tcp://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(frame(1, b"\1\0BWAY" + msgspec.msgpack.encode(hello)))
        assert (await within(reader.readexactly(6)))[4] == 0x0C
        writer.write(frame(0x0D, b"\0\0" + answer))
        assert b"refused" in (rest := await within(reader.read())) or b"LOGIN" in rest
        writer.close()
        assert await user_of(server.addresses[0], user="alice", password="alice") == "alice"


async def test_a_long_frame_before_the_login_is_refused_at_once(users: UsersFile) -> None:
    async with busway.serve("tcp://127.0.0.1:0", users=users.path) as server:
        host, port = server.addresses[0].removeprefix("tcp://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write((1 << 20).to_bytes(4, "little") + b"\1\0")
        rest = await within(reader.read())
        assert int.from_bytes(rest[6:8], "little") == Code.FRAME_TOO_LARGE
        writer.close()


async def test_secrets_are_in_no_log_line(users: UsersFile, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with busway.serve("tcp://127.0.0.1:0", users=users.path) as server:
        await refused(server.addresses[0], user="alice", password="hunter2")
        await refused(server.addresses[0], user="alice", token="hunter2.x.y")
    assert "hunter2" not in caplog.text
