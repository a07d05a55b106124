"""Streams and channels of several nodes, as each of them knows them."""

from tests.support.net import eventually


def streams(server):
    return {name: stream.config for name, stream in server._hub.streams.by_name.items() if name != "default"}


def channels(server, stream):
    number = server._hub.streams.by_name[stream].number
    return {one["name"] for one in server._hub.channels.figures(number)}


def lacking(server):
    return {(one["stream"], one["channel"]) for one in server._hub.peers.members.agreement.figures()}


async def settle(condition):
    async def holds():
        return condition()

    await eventually(holds)
