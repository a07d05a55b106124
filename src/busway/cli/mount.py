"""`busway mount` and `busway fusebus`: mount a bus as a file system until a signal. Called by busway.cli.app."""

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
_BUS = "New bus"
_DEFAULTS = Mount()


def _octal(text: str | int) -> int:
    if not isinstance(text, str):
        return text
    try:
        return int(text, 8)
    except ValueError:
        raise ValueError(f"{text!r} is not a file mode: write 600, 660 or 666") from None


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
        help="File for warnings, in addition to stderr; with --background warnings go only there.",
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
Channels = Annotated[
    int | None, _limit("channels", "Largest number of channels.", values.count, "N", str(_DEFAULTS.channels))
]
Messages = Annotated[
    int | None,
    _limit("messages", "Number of messages that fusebus retains.", values.count, "N", str(_DEFAULTS.messages)),
]
Bytes = Annotated[int | None, _limit("bytes", "Bytes of messages that fusebus retains.", values.size, "SIZE", "4m")]
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
        help="Return no bytes from a read of fusebus without a message, instead of waiting.",
        rich_help_panel=_LIMITS,
    ),
]
Clients = Annotated[
    int | None,
    _limit("clients", "Largest number of clients of fusebus (open files).", values.count, "N", str(_DEFAULTS.clients)),
]
Subscriptions = Annotated[
    int | None,
    _limit(
        "subscriptions",
        "Largest number of subscriptions of a client of fusebus.",
        values.count,
        "N",
        str(_DEFAULTS.subscriptions),
    ),
]
Line = Annotated[int | None, _limit("line", "Largest line or request that can be written.", values.size, "SIZE", "1m")]
Followed = Annotated[
    int | None,
    _limit(
        "followed",
        "Largest number of topics with a file that is kept up to date.",
        values.count,
        "N",
        str(_DEFAULTS.followed),
    ),
]
Kept = Annotated[
    int | None, _limit("kept", "Bytes of lines that the file of a topic retains.", values.size, "SIZE", "256k")
]
Listed = Annotated[
    int | None,
    _limit(
        "listed",
        "Largest number of messages that the folder of a stream lists.",
        values.count,
        "N",
        str(_DEFAULTS.listed),
    ),
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
    """Implement both verbs. Its parameters are their flags."""
    settings, addresses = _settings(locals()), _addresses(unix, tcp)
    if link.url and (addresses or data):
        url = "the variable BUSWAY_URL" if link.url == os.environ.get("BUSWAY_URL", "").split() else "--url"
        raise typer.BadParameter(
            f"--unix, --tcp and --data start a new bus, and {url} names one that runs: leave one of them out"
        )
    _log_to(log)
    ready = _detached() if background else _ignore
    terminal.run(lambda: _mount(link, settings, folder, addresses, data, seconds, ready, json=json, quiet=quiet))


def _verb(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a verb: give it the flags of _mounted(), except those in `without`."""

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        every = inspect.signature(_mounted, eval_str=True).parameters.values()
        own = [parameter for parameter in every if parameter.name not in {*without, "documented"}]
        verb.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
        return linked(verb)

    return decorate


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
    """Mount only the two files of fusebus, channels and fusebus. Otherwise like busway mount.

    busway fusebus /tmp/fusebus-demo
    """
    _mounted(link, **given, documented=True)


def _settings(given: dict[str, Any]) -> Mount:
    names = {option.name for option in dataclasses.fields(Mount)}
    return flags.checked(lambda: Mount(**{name: given[name] for name in names if given.get(name) is not None}))


def _addresses(unix: list[str] | None, tcp: list[str] | None) -> list[str]:
    return flags.checked(
        lambda: [
            values.listen_address(kind, text) for kind, many in (("unix", unix), ("tcp", tcp)) for text in many or ()
        ]
    )


def _log_to(path: str | None) -> None:
    """Write warnings to a file in addition to stderr."""
    if path is None:
        return
    try:
        file = logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"--log: {path} can't be written ({error.strerror}): choose another file") from None
    file.setLevel(logging.WARNING)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger("busway").addHandler(file)


def _detached() -> Callable[[str], None]:
    """Continue in a child process. The parent ends when the child is mounted, or with its exit code if it fails."""
    reader, writer = os.pipe()
    if (child := os.fork()) != 0:
        os.close(writer)
        if os.read(reader, 1):
            raise typer.Exit
        raise typer.Exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os.close(reader)
    os.setsid()

    def ready(_address: str) -> None:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        os.close(null)
        os.write(writer, b".")
        os.close(writer)

    return ready


@contextlib.asynccontextmanager
async def _bus(link: Link, addresses: list[str], data: str | None) -> "AsyncIterator[tuple[Connect, tuple[str, ...]]]":
    """Yield a function that connects a client, and the addresses of the new bus, if one was started."""
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
    from busway.gateway.files.door import FileDoor  # only mounts need it, and it exists on Linux only

    with terminal.Signals() as signals:
        async with _bus(link, addresses, data) as (connect, listening):
            door = FileDoor(folder, connect, settings)
            await door.open()
            try:
                gc.collect()
                gc.freeze()  # these objects live until the end
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
                second_signal = asyncio.ensure_future(signals.second.wait())
                await asyncio.wait({closing, second_signal}, return_when=asyncio.FIRST_COMPLETED)
                second_signal.cancel()
                if closing.done():
                    closing.result()
                closing.cancel()
    if signals.interrupted:
        raise terminal.Ended(terminal.INTERRUPTED)


def _ignore(_text: str) -> None:
    return


async def _until(stop: asyncio.Event, ended: asyncio.Event, seconds: float | None) -> None:
    waiting = {asyncio.ensure_future(stop.wait()), asyncio.ensure_future(ended.wait())}
    await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()


def _announce(door: "FileDoor", listening: tuple[str, ...]) -> None:
    """Print where the bus is mounted, and commands to try."""
    console = terminal.notes
    folder = shlex.quote(door.address)
    if door.repaired:
        terminal.note(f"removed the mount of a killed process from {door.address}")
    console.print(f"[bold]busway {busway.__version__}[/] is mounted on [cyan]{door.address}[/]")
    for address in listening:
        console.print(f"  [cyan]{address}[/]")
    if not door.settings.documented:
        console.print(f"[dim]read     [/]cat {folder}/README")
        console.print(f"[dim]watch    [/]touch {folder}/topics/hello && tail -f {folder}/topics/hello")
        console.print(f"[dim]publish  [/]echo Hello > {folder}/topics/hello")
    console.print(f"[dim]Ctrl-C unmounts it, and so does[/] fusermount3 -u {folder}")
