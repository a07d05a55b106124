"""`busway mount` and `busway fusebus`: the bus as a file system, until it is told to stop."""

import asyncio
import contextlib
import dataclasses
import gc
import inspect
import logging
import os
import shlex
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

import busway
from busway.cli.common import flags, terminal, values
from busway.cli.common.connect import Link, linked
from busway.gateway.files.config import Mount

if TYPE_CHECKING:
    from busway.gateway.files.door import Connect, FileDoor

_LIMITS = "Limits and times"
_BUS = "A bus of its own"
_DEFAULTS = Mount()


def _octal(text: str | int) -> int:
    if not isinstance(text, str):
        return text
    try:
        return int(text, 8)
    except ValueError:
        raise ValueError(f"{text!r} are no permissions: write them as 600, 660 or 666") from None


def _limit(name: str, help: str, parser: Any, metavar: str, shown: str) -> Any:  # noqa: A002 - typer's own word
    flag = "--" + name.replace("_", "-")
    return typer.Option(flag, help=help, parser=parser, metavar=metavar, show_default=shown, rich_help_panel=_LIMITS)


Folder = Annotated[str, typer.Argument(help="An empty folder.", metavar="DIR", show_default=False)]
Unix = Annotated[
    list[str] | None,
    typer.Option("--unix", help="Unix socket to listen on; repeatable.", metavar="PATH", rich_help_panel=_BUS),
]
Tcp = Annotated[
    list[str] | None,
    typer.Option(
        "--tcp", help="TCP address to listen on; port 0 picks a free one.", metavar="HOST:PORT", rich_help_panel=_BUS
    ),
]
Data = Annotated[
    str | None,
    typer.Option("--data", help="Folder for streams and pins.", metavar="FOLDER", rich_help_panel=_BUS),
]
Background = Annotated[
    bool,
    typer.Option("--background", "-b", help="Return as soon as the folder is mounted; fusermount3 -u DIR unmounts it."),
]
LogFile = Annotated[
    str | None,
    typer.Option(
        "--log",
        help="File for warnings, in addition to stderr; with --background the only place for them.",
        metavar="FILE",
    ),
]
AllowOther = Annotated[bool, typer.Option("--allow-other", help="Allow access by other users.")]
Mode = Annotated[
    int | None,
    typer.Option(
        "--mode",
        help="Permissions of the files.",
        parser=_octal,
        metavar="OCTAL",
        show_default="600; with --allow-other 666",
    ),
]
Channels = Annotated[int | None, _limit("channels", "Most channels.", values.count, "N", str(_DEFAULTS.channels))]
Messages = Annotated[
    int | None,
    _limit("messages", "Messages of fusebus that are kept.", values.count, "N", str(_DEFAULTS.messages)),
]
Bytes = Annotated[int | None, _limit("bytes", "And bytes of them.", values.size, "SIZE", "4m")]
MaxMessage = Annotated[
    int | None,
    _limit(
        "max_message",
        "Largest message that can be written to fusebus.",
        values.size,
        "SIZE",
        str(_DEFAULTS.max_message),
    ),
]
EmptyReads = Annotated[
    bool,
    typer.Option(
        "--empty-reads",
        help="A read of fusebus that finds nothing returns no bytes instead of waiting.",
        rich_help_panel=_LIMITS,
    ),
]
Clients = Annotated[
    int | None, _limit("clients", "Most open files fusebus.", values.count, "N", str(_DEFAULTS.clients))
]
Subscriptions = Annotated[
    int | None,
    _limit("subscriptions", "Most subscriptions of one of them.", values.count, "N", str(_DEFAULTS.subscriptions)),
]
Line = Annotated[int | None, _limit("line", "Largest line or request that can be written.", values.size, "SIZE", "1m")]
Followed = Annotated[
    int | None,
    _limit("followed", "Most topics that are followed for files.", values.count, "N", str(_DEFAULTS.followed)),
]
Kept = Annotated[int | None, _limit("kept", "Bytes of lines that each of them keeps.", values.size, "SIZE", "256k")]
Listed = Annotated[
    int | None,
    _limit("listed", "Most messages that the folder of a stream lists.", values.count, "N", str(_DEFAULTS.listed)),
]
Request = Annotated[float | None, _limit("request", "Time for a service to answer.", values.duration, "TIME", "5s")]


def _mounted(
    link: Link,
    folder: Folder,
    unix: Unix = None,
    tcp: Tcp = None,
    data: Data = None,
    allow_other: AllowOther = False,
    mode: Mode = None,
    channels: Channels = None,
    messages: Messages = None,
    bytes: Bytes = None,  # noqa: A002 - the flag's name
    max_message: MaxMessage = None,
    empty_reads: EmptyReads = False,
    clients: Clients = None,
    subscriptions: Subscriptions = None,
    line: Line = None,
    followed: Followed = None,
    kept: Kept = None,
    listed: Listed = None,
    request: Request = None,
    background: Background = False,
    log: LogFile = None,
    seconds: flags.For = None,
    json: flags.Json = False,
    quiet: flags.Quiet = False,
    *,
    documented: bool = False,
) -> None:
    """What both verbs do: their flags are in this list."""
    settings, addresses = _settings(locals()), _addresses(unix, tcp)
    if link.url and (addresses or data):
        url = "the variable BUSWAY_URL" if link.url == os.environ.get("BUSWAY_URL", "").split() else "--url"
        raise typer.BadParameter(f"--unix, --tcp and --data are for a bus of its own: leave {url} out, or them")
    _log_to(log)
    ready = _detached() if background else _hush
    terminal.run(lambda: _mount(link, settings, folder, addresses, data, seconds, ready, json=json, quiet=quiet))


def _verb(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb the flags of a mount, but not these."""

    def give(verb: Callable[..., None]) -> Callable[..., None]:
        every = inspect.signature(_mounted, eval_str=True).parameters.values()
        own = [one for one in every if one.name not in {*without, "documented"}]
        verb.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
        return linked(verb)

    return give


@_verb()
def mount(link: Link, **given: Any) -> None:
    """Mount a bus on an empty folder: the one at --url, or a new one. SIGTERM and Ctrl-C unmount it.

    busway mount /tmp/bus
    busway mount /tmp/bus --url tcp://127.0.0.1:7420
    busway mount /tmp/bus --tcp 127.0.0.1:7420 --data ./data
    """
    _mounted(link, **given)


@_verb("line", "followed", "kept", "listed", "request")
def fusebus(link: Link, **given: Any) -> None:
    """Mount only the two files of fusebus, channels and fusebus; else as busway mount.

    busway fusebus /tmp/fusebus-demo
    """
    _mounted(link, **given, documented=True)


def _settings(given: dict[str, Any]) -> Mount:
    names = {one.name for one in dataclasses.fields(Mount)}
    return flags.checked(lambda: Mount(**{name: given[name] for name in names if given.get(name) is not None}))


def _addresses(unix: list[str] | None, tcp: list[str] | None) -> list[str]:
    return flags.checked(
        lambda: [
            values.listen_address(kind, one) for kind, many in (("unix", unix), ("tcp", tcp)) for one in many or ()
        ]
    )


def _log_to(path: str | None) -> None:
    """Write warnings to a file, too."""
    if path is None:
        return
    try:
        file = logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"the log {path} can't be written: {error.strerror}") from None
    file.setLevel(logging.WARNING)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger("busway").addHandler(file)


def _detached() -> Callable[[str], None]:
    """Go on in a process of its own; this one ends when that says that it is ready, or as that does."""
    heard, told = os.pipe()
    if (child := os.fork()) != 0:
        os.close(told)
        if os.read(heard, 1):
            raise typer.Exit
        raise typer.Exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os.close(heard)
    os.setsid()

    def ready(_place: str) -> None:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nowhere, stream)
        os.close(nowhere)
        os.write(told, b".")
        os.close(told)

    return ready


@contextlib.asynccontextmanager
async def _bus(link: Link, addresses: list[str], data: str | None) -> "AsyncIterator[tuple[Connect, tuple[str, ...]]]":
    """A way to connect, and the addresses of a bus that was started for it."""
    if link.url:
        yield lambda name: dataclasses.replace(link, name=link.name or name).connect(reconnect=True), ()
        return
    async with flags.checked(lambda: busway.serve(*addresses, name=link.name, data=data)) as server:
        yield lambda name: server.connect(name=name), server.addresses


async def _mount(
    link: Link,
    settings: Mount,
    folder: str,
    addresses: list[str],
    data: str | None,
    seconds: float | None,
    ready: Callable[[str], None],
    *,
    json: bool,
    quiet: bool,
) -> None:
    from busway.gateway.files.door import FileDoor  # needed by those who mount, and there on Linux only

    with terminal.Signals() as signals:
        async with _bus(link, addresses, data) as (connect, listening):
            door = FileDoor(folder, connect, settings)
            await door.open()
            try:
                gc.collect()
                gc.freeze()  # what is there by now stays
                if not quiet:
                    _announce(door, listening)
                if json:
                    terminal.record(
                        {"mount": door.address, "addresses": listening, "repaired": door.repaired, "pid": os.getpid()}
                    )
                ready(door.address)
                await _until(signals.first, door.ended, seconds)
                if door.ended.is_set() and not quiet:
                    terminal.note(f"{door.address} was unmounted")
            finally:
                closing = asyncio.ensure_future(door.close())
                hurry = asyncio.ensure_future(signals.second.wait())
                await asyncio.wait({closing, hurry}, return_when=asyncio.FIRST_COMPLETED)
                hurry.cancel()
                if closing.done():
                    closing.result()
                closing.cancel()
    if signals.interrupted:
        raise terminal.Ended(terminal.INTERRUPTED)


def _hush(_text: str) -> None:
    return


async def _until(stop: asyncio.Event, ended: asyncio.Event, seconds: float | None) -> None:
    waiting = {asyncio.ensure_future(stop.wait()), asyncio.ensure_future(ended.wait())}
    await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for one in waiting:
        one.cancel()


def _announce(door: "FileDoor", listening: tuple[str, ...]) -> None:
    """A few lines: where it is, and what to try."""
    console = terminal.notes
    place = shlex.quote(door.address)
    if door.repaired:
        terminal.note(f"removed the mount that a process which was killed had left on {door.address}")
    console.print(f"[bold]busway {busway.__version__}[/] is mounted on [cyan]{door.address}[/]")
    for one in listening:
        console.print(f"  [cyan]{one}[/]")
    if not door.settings.documented:
        console.print(f"[dim]read     [/]cat {place}/README")
        console.print(f"[dim]watch    [/]touch {place}/topics/hello && tail -f {place}/topics/hello")
        console.print(f"[dim]publish  [/]echo Hello > {place}/topics/hello")
    console.print(f"[dim]Ctrl-C unmounts it, and so does[/] fusermount3 -u {place}")
