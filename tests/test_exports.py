"""The names of `import busway` are a promise: one is added or removed on purpose only."""

import subprocess
import sys

import busway

PUBLIC = """
    ANY TLS AckLate Backoff Buffer Bus BusError Caller Channel ChannelInfo ChannelPart Closed Cluster ConnectFailed DataFailed DeadLetter Delivered Disconnected Event EventStream Expr Failed Forbidden Forked Gathering
    HandlerError Http InvalidFields InvalidPattern InvalidRule InvalidTopic LimitExceeded ListenFailed LocalProtocolError
    Message MountFailed NoConsumers NoResponders Offline OutOfRange PayloadError Placed Policy Position Positions Protocol ProtocolError Received Redrive Reject Rejected RemoteProtocolError Replies Request Scope Server Service ServiceError
    ServiceGone ServiceTaken Settings SlowConsumer StoreFailed StoredTopic Stream StreamConfig StreamInfo StreamPart Subscription Timeout TypedChannel TypedRequest TypedService TypedSubscription WithReply
    __version__ connect decode encode expr matches protocol run serve
"""


def test_the_public_names() -> None:
    assert sorted(busway.__all__) == sorted(PUBLIC.split())
    for name in busway.__all__:
        assert getattr(busway, name) is not None


def test_dir_shows_only_public_names() -> None:
    """Also after modules were imported that are part of the package and no part of the promise."""
    program = "import busway, busway.sync, busway.cli, busway.broker.hub\nprint(*dir(busway))"
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert sorted(shown) == sorted({*PUBLIC.split(), "errors", "settings", "sync"})
    assert {name for name in dir(busway) if name.startswith("_")} == {"__version__"}


def test_importing_does_no_work() -> None:
    """No thread, no loop, no socket and no terminal library at import time."""
    program = (
        "import sys, threading, asyncio, busway\n"
        "assert threading.active_count() == 1\n"
        "assert not {'typer', 'rich', 'pytest', 'pydantic', 'pyarrow', 'sqlalchemy'} & set(sys.modules), 'too much is imported'\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)
