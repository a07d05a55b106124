"""The typer application: registers every verb under its name. busway.cli.main() runs it."""

from typing import Annotated

import typer

import busway
from busway.cli.bench.bench import bench
from busway.cli.channels.channel import (
    channel_create,
    channel_info,
    channel_list,
    channel_pause,
    channel_remove,
    channel_resume,
    channel_seek,
    channel_update,
)
from busway.cli.channels.dead_letters import channel_dead, channel_redrive
from busway.cli.channels.take import take
from busway.cli.cluster import cluster, cluster_promote
from busway.cli.common import flags
from busway.cli.common.flags import Command, Group
from busway.cli.doctor import doctor
from busway.cli.info import info
from busway.cli.lake.archive import lake_archive
from busway.cli.lake.audit import lake_audit
from busway.cli.lake.replay import lake_replay
from busway.cli.lake.run import lake_run, lake_stop
from busway.cli.lake.sql import lake_sql
from busway.cli.lake.stats import lake_stats
from busway.cli.lake.table import lake_table
from busway.cli.lake.upkeep import lake_optimize, lake_upgrade, lake_vacuum
from busway.cli.mount import fusebus, mount
from busway.cli.pub import pub, push
from busway.cli.replay import replay
from busway.cli.reply import reply
from busway.cli.req import req
from busway.cli.retained import kept, pin, post, unpin
from busway.cli.serve.command import serve
from busway.cli.stream import stream_create, stream_info, stream_list, stream_recover, stream_remove, stream_update
from busway.cli.sub import sub
from busway.cli.user.commands import (
    user_add,
    user_key,
    user_list,
    user_may,
    user_password,
    user_remove,
    user_show,
    user_token,
)

app = typer.Typer(
    name="busway",
    cls=Group,
    help="A message bus for Python programs: publish, subscribe, push, request, reply, store.",
    epilog="Every flag has an environment variable: BUSWAY_URL etc. for a connection, BUSWAY_<VERB>_<FLAG> for the others.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"busway {busway.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version  # _version() has printed it


for verb in (
    serve,
    pub,
    sub,
    push,
    req,
    reply,
    post,
    pin,
    unpin,
    kept,
    take,
    replay,
    mount,
    fusebus,
    info,
    bench,
    doctor,
):
    app.command(verb.__name__, cls=Command)(flags.with_environment(verb))

nodes = typer.Typer(name="cluster", cls=Group)
nodes.callback(invoke_without_command=True)(flags.with_environment(cluster))
nodes.command("promote", cls=Command)(flags.with_environment(cluster_promote))
app.add_typer(nodes)

stream = typer.Typer(name="stream", help="Manage streams, which store messages.", no_args_is_help=True, cls=Group)
for verb in (stream_list, stream_info, stream_create, stream_update, stream_remove, stream_recover):
    stream.command(verb.__name__.removeprefix("stream_"), cls=Command)(flags.with_environment(verb))
app.add_typer(stream)

channel = typer.Typer(
    name="channel", help="Manage channels, which share a stream among consumers.", no_args_is_help=True, cls=Group
)
for verb in (
    channel_list,
    channel_info,
    channel_create,
    channel_update,
    channel_seek,
    channel_pause,
    channel_resume,
    channel_dead,
    channel_redrive,
    channel_remove,
):
    channel.command(verb.__name__.removeprefix("channel_"), cls=Command)(flags.with_environment(verb))
app.add_typer(channel)

user = typer.Typer(
    name="user", help="Manage the users of a broker, in its users file.", no_args_is_help=True, cls=Group
)
for verb in (user_add, user_list, user_show, user_remove, user_password, user_key, user_token, user_may):
    user.command(verb.__name__.removeprefix("user_"), cls=Command)(flags.with_environment(verb))
app.add_typer(user)

lake = typer.Typer(
    name="lake", help="Run Spark queries and jobs on streams and their archive.", no_args_is_help=True, cls=Group
)
for verb in (
    lake_archive,
    lake_table,
    lake_optimize,
    lake_vacuum,
    lake_upgrade,
    lake_sql,
    lake_audit,
    lake_stats,
    lake_replay,
    lake_run,
    lake_stop,
):
    lake.command(verb.__name__.removeprefix("lake_"), cls=Command)(flags.with_environment(verb))
app.add_typer(lake)
