"""`busway user`: adds, shows and removes users, sets their passwords and keys, and explains decisions.

Called by busway.cli.app. The commands change the users file; a broker that uses it reloads it by itself.
"""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from busway._core import VERBS
from busway.authority import keys
from busway.authority.grants import Grant
from busway.authority.passwords import Verifier
from busway.authority.policy import User
from busway.authority.users_file import UsersError, read_users
from busway.cli.common import flags, terminal, values

_Users = Annotated[
    str,
    typer.Option("--users", help="The users file.", envvar="BUSWAY_USERS", metavar="FILE"),
]
_Name = Annotated[str, typer.Argument(help="Name of the user.", metavar="NAME", show_default=False)]
_FILE = "users.toml"


def user_add(
    name: _Name,
    users: _Users = _FILE,
    role: Annotated[
        list[str] | None, typer.Option("--role", help="A role in the file; repeatable.", metavar="ROLE")
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", help="Verbs and a topic pattern that are allowed; repeatable.", metavar="GRANT"),
    ] = None,
    deny: Annotated[
        list[str] | None,
        typer.Option("--deny", help="Verbs and a topic pattern that are denied; repeatable.", metavar="GRANT"),
    ] = None,
    certificate: Annotated[
        list[str] | None,
        typer.Option("--certificate", help="Name in its certificate: CN=…, DNS:…, URI:…; repeatable.", metavar="NAME"),
    ] = None,
    uid: Annotated[
        list[int] | None,
        typer.Option("--uid", help="Number of its user of this host, at Unix sockets; repeatable.", metavar="N"),
    ] = None,
    json: flags.Json = False,
) -> None:
    """Add a user to the users file, which is made if it is not there. It can log in once it has a password or a key.

    busway user add alice --allow 'publish,subscribe orders/**' --deny 'publish orders/closed/**'
    """
    from busway.cli.user.edit import UsersEdit, listed

    with _reported():
        edit = UsersEdit(users)
        table = edit.add(name)
        given: dict[str, Any] = {"roles": role, "allow": allow, "deny": deny, "certificates": certificate, "uids": uid}
        for key, value in given.items():
            if value:
                table[key] = listed(value)
        edit.save()
    _done(json, {"user": name, "added": True}, f"added {name} to {users}")


def user_list(users: _Users = _FILE, json: flags.Json = False) -> None:
    """List the users, their roles, and how they log in."""
    with _reported():
        policy = read_users(users)
    for user in policy.users.values():
        if json:
            terminal.record({"user": user.name, "roles": user.roles, "login": _logins(user)})
        else:
            roles = f"  roles {', '.join(user.roles)}" if user.roles else ""
            terminal.out.print(f"{user.name}{roles}  by {', '.join(_logins(user)) or 'nothing'}", markup=False)


def user_show(name: _Name, users: _Users = _FILE, json: flags.Json = False) -> None:
    """Show one user: how it logs in, and every grant with the role that it comes from."""
    with _reported():
        policy = read_users(users)
        if name not in policy.users:
            raise UsersError(f"{users}: there is no user {name!r}")
    user = policy.users[name]
    parts = policy.parts(name)
    if json:
        grants = [
            {"grant": str(grant), "allow": allow, "role": part.name or None}
            for part in parts
            for allow, side in ((True, part.allow), (False, part.deny))
            for grant in _shown(side, name)
        ]
        terminal.record({"user": name, "roles": user.roles, "login": _logins(user), "grants": grants})
        return
    terminal.out.print(f"{name}  logs in by {', '.join(_logins(user)) or 'nothing'}", markup=False)
    for part in parts:
        origin = f"  (role {part.name})" if part.name else ""
        for word, side in (("allow", part.allow), ("deny ", part.deny)):
            for grant in _shown(side, name):
                terminal.out.print(f"  {word}  {grant}{origin}", markup=False)


def user_remove(name: _Name, users: _Users = _FILE, json: flags.Json = False) -> None:
    """Remove a user. A broker that uses the file ends its sessions within a second."""
    from busway.cli.user.edit import UsersEdit

    with _reported():
        edit = UsersEdit(users)
        edit.remove(name)
        edit.save()
    _done(json, {"user": name, "removed": True}, f"removed {name} from {users}")


def user_password(
    name: _Name,
    users: _Users = _FILE,
    password_file: Annotated[
        str | None,
        typer.Option("--password-file", help="Read the password from this file; - is stdin.", metavar="FILE"),
    ] = None,
    json: flags.Json = False,
) -> None:
    """Set the password of a user. It asks for it, so that the password is in no list of processes.

    busway user password alice
    """
    from busway.cli.user.edit import UsersEdit

    with _reported():
        edit = UsersEdit(users)
        table = edit.user(name)
        if password_file is None:
            password = typer.prompt(f"password of {name}", hide_input=True, confirmation_prompt=True, err=True)
        elif password_file == "-":  # noqa: S105, stands for stdin
            password = typer.get_text_stream("stdin").readline().rstrip("\r\n")
        else:
            password = Path(password_file).read_text("utf-8").strip("\r\n")
        table["password"] = str(Verifier.make(password))
        edit.save()
    _done(json, {"user": name, "password": True}, f"set the password of {name} in {users}")


def user_key(
    name: _Name,
    users: _Users = _FILE,
    out: Annotated[
        str | None,
        typer.Option("--out", help="File for the private key.", metavar="FILE", show_default="NAME.key"),
    ] = None,
    public: Annotated[
        str | None, typer.Option("--public", help="Add this public key instead of making one.", metavar="BASE64")
    ] = None,
    json: flags.Json = False,
) -> None:
    """Make an Ed25519 key for a user: the private key goes to a file, the public one to the users file.

    busway user key alice --out alice.key
    """
    from busway.cli.user.edit import UsersEdit, append

    with _reported():
        edit = UsersEdit(users)
        table = edit.user(name)
        path = None
        if public is None:
            path = Path(out or f"{name}.key")
            private = keys.new_private()
            public = keys.public_of(private)
            _write_new(path, keys.to_pem(private))
        append(table, "keys", public)
        edit.save()
    where = "" if path is None else f"; the private key is in {path}"
    _done(json, {"user": name, "key": public, "file": path and str(path)}, f"added the key {public} of {name}{where}")


def user_token(
    name: _Name,
    key: Annotated[str, typer.Option("--key", help="Private Ed25519 key that signs it.", metavar="FILE")],
    audience: Annotated[str, typer.Option("--audience", help="The `audience` of [tokens].", metavar="TEXT")] = "busway",
    expires: Annotated[
        float, typer.Option("--expires", help="How long it is valid.", parser=values.duration, metavar="TIME")
    ] = "1h",  # type: ignore[assignment]  # typer parses the default
    role: Annotated[
        list[str] | None, typer.Option("--role", help="A role of the user; repeatable.", metavar="ROLE")
    ] = None,
    jwks: Annotated[
        str | None, typer.Option("--jwks", help="Also write the public key to this JWKS file.", metavar="FILE")
    ] = None,
    json: flags.Json = False,
) -> None:
    """Make a token (JWT) for tests and programs without an identity provider, and print it.

    busway user token alice --key signing.key --expires 8h > alice.token
    """
    import time

    from busway.authority import tokens

    with _reported():
        now = int(time.time())
        claims: dict[str, Any] = {"sub": name, "aud": audience, "iat": now, "exp": now + int(expires)}
        if role:
            claims["roles"] = role
        if jwks is not None:
            Path(jwks).write_text(tokens.jwks_of(key), "utf-8")
        token = tokens.issue(key, claims)
    if json:
        terminal.record({"user": name, "token": token, "expires": claims["exp"]})
    else:
        print(token)


def user_may(
    name: _Name,
    verb: Annotated[str, typer.Argument(help=f"One of {', '.join(VERBS)}.", metavar="VERB", show_default=False)],
    topic: Annotated[str, typer.Argument(help="Topic or pattern.", metavar="TOPIC", show_default=False)],
    users: _Users = _FILE,
    json: flags.Json = False,
) -> None:
    """Explain whether a user may do something; exit code 5 if not.

    busway user may alice publish orders/closed/1
    """
    with _reported():
        policy = read_users(users)
        if name not in policy.users:
            raise UsersError(f"{users}: there is no user {name!r}")
        if verb not in VERBS:
            raise UsersError(f"{verb!r} is no verb; the verbs are {', '.join(VERBS)}")
        decision = policy.decide(name, verb, topic)  # type: ignore[arg-type]  # checked above
    if json:
        terminal.record(
            {"user": name, "verb": verb, "topic": topic, "allowed": decision.allowed, "reason": decision.reason}
        )
    else:
        may = "may" if decision.allowed else "may not"
        terminal.out.print(f"{name} {may} {verb} {topic}: {decision.reason}", markup=False)
    if not decision.allowed:
        raise SystemExit(terminal.REJECTED)


class _reported:  # noqa: N801 - used like a function
    """Reports invalid files and values as errors of usage."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError | OSError | ImportError):
            raise typer.BadParameter(str(error)) from None


def _shown(grants: tuple[Grant, ...], name: str) -> list[Grant]:
    return [Grant(grant.verbs, grant.of(name)) for grant in grants]


def _logins(user: User) -> list[str]:
    """How a user logs in, without secrets."""
    ways = ["password"] if user.password else []
    ways += ["key"] * bool(user.keys)
    ways += list(user.certificates)
    return ways + [f"uid {uid}" for uid in user.uids]


def _write_new(path: Path, data: bytes) -> None:
    """Write a secret to a file that does not exist yet, with mode 0600."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _done(json: bool, record: dict[str, Any], text: str) -> None:
    if json:
        terminal.record(record)
    else:
        terminal.note(text)
