"""Connection flags of the client verbs, and the bus that they describe. Client verbs are decorated with linked()."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

import busway
from busway.cli.common import logs, values
from busway.cli.common.flags import checked
from busway.settings import DEFAULT_URL
from busway.transport import parse

_PANEL = "Connection"


def _flag(*names: str, help: str, **more: Any) -> Any:  # noqa: A002 - typer's own word
    variable = "BUSWAY_" + names[0].partition("/")[0].lstrip("-").replace("-", "_").upper()
    return typer.Option(*names, help=help, envvar=variable, rich_help_panel=_PANEL, **more)


Url = Annotated[
    list[str] | None,
    _flag(
        "--url",
        help="Address of a server; repeatable; the client tries them in order.",
        show_default=DEFAULT_URL,
        metavar="ADDRESS",
    ),
]
Name = Annotated[str, _flag("--name", help="Name of this client, shown to other clients.", show_default=False)]
Ca = Annotated[str | None, _flag("--ca", help="PEM file of the authority to trust (tls://).", metavar="FILE")]
Cert = Annotated[str | None, _flag("--cert", help="PEM file of this client's certificate.", metavar="FILE")]
Key = Annotated[str | None, _flag("--key", help="PEM file of the private key of the certificate.", metavar="FILE")]
ServerName = Annotated[
    str | None,
    _flag(
        "--server-name", help="Name to check the server's certificate against.", metavar="NAME", show_default="the host"
    ),
]
Credentials = Annotated[
    str | None, _flag("--credentials", help="Credentials for a broker with its own authentication.", metavar="TEXT")
]
User = Annotated[str, _flag("--user", help="User of this client.", metavar="NAME", show_default=False)]
PasswordFile = Annotated[
    str | None, _flag("--password-file", help="File with the password of the user.", metavar="FILE")
]
KeyFile = Annotated[str | None, _flag("--key-file", help="PEM file with the Ed25519 key of the user.", metavar="FILE")]
TokenFile = Annotated[str | None, _flag("--token-file", help="File with a token (JWT) of the user.", metavar="FILE")]
ConnectTimeout = Annotated[
    float,
    _flag("--connect-timeout", help="Time to connect.", parser=values.duration, metavar="TIME", show_default="5s"),
]

Wait = Annotated[bool, _flag("--wait", help="Wait without limit for a server that does not run yet.")]
Learn = Annotated[
    bool, _flag("--learn/--no-learn", help="Reconnect to other servers of the cluster that the broker announced.")
]


@dataclass(frozen=True, slots=True)
class Link:
    """The server addresses and the identity of a client. Call checked() before connect()."""

    url: list[str] | None = None
    name: str = ""
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    server_name: str | None = None
    credentials: str | None = None
    user: str = ""
    password_file: str | None = None
    key_file: str | None = None
    token_file: str | None = None
    connect_timeout: float = 5.0
    wait: bool = False
    learn: bool = True

    def checked(self) -> "Link":
        if self.key and not self.cert:
            raise typer.BadParameter("--key needs --cert: give the certificate of the key")
        try:
            for url in self.urls:
                parse(url)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        return self

    @property
    def urls(self) -> list[str]:
        return [values.connect_address(url) for url in self.url or ()]

    def connect(self, *, reconnect: bool) -> busway.Bus:
        """Return a bus that is not connected yet. Verbs that run until they are stopped reconnect, others do not."""
        given = self.ca or self.cert or self.server_name
        tls = busway.TLS(cert=self.cert, key=self.key, ca=self.ca, server_name=self.server_name) if given else None
        more: dict[str, Any] = {} if reconnect else {"reconnect": None}
        return busway.connect(
            *self.urls,
            name=self.name,
            timeout=self.connect_timeout,
            wait=self.wait,
            tls=tls,
            credentials=self.credentials,
            user=self.user,
            password_file=self.password_file,
            key_file=self.key_file,
            token_file=self.token_file,
            learn=self.learn,
            **more,
        )


def linked(verb: Callable[..., None]) -> Callable[..., None]:
    """Decorate a verb whose first parameter is a Link: replace the parameter with the connection flags."""
    flags = {
        "url": (Url, None),
        "name": (Name, ""),
        "ca": (Ca, None),
        "cert": (Cert, None),
        "key": (Key, None),
        "server_name": (ServerName, None),
        "credentials": (Credentials, None),
        "user": (User, ""),
        "password_file": (PasswordFile, None),
        "key_file": (KeyFile, None),
        "token_file": (TokenFile, None),
        "connect_timeout": (ConnectTimeout, "5s"),
        "wait": (Wait, False),
        "learn": (Learn, True),
    }

    @functools.wraps(verb)
    def with_flags(**given: Any) -> None:
        checked(lambda: logs.begin(quiet=given.get("quiet", False)))
        link = Link(**{name: given.pop(name) for name in flags}).checked()
        verb(link, **given)

    own = list(inspect.signature(verb, eval_str=True).parameters.values())[1:]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in flags.items()
    ]
    keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    with_flags.__signature__ = inspect.Signature([*keyword, *added])  # type: ignore[attr-defined]
    return with_flags
