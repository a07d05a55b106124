"""Redrive: sends dead letters back to the channel in which their messages died.

Nothing is copied. The message is still in its stream, so the channel notes in its journal that it is not done any more, together
with the fact that its letter was sent back: one record, so a letter is sent back once, whatever is killed when.
"""

from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec

from busway._core import Block
from busway.broker.channels.driver import ChannelDriver
from busway.broker.channels.order_keys import key_of
from busway.common import environment
from busway.errors import Code, Rejected, StoreFailed

if TYPE_CHECKING:
    from busway.broker.hub import Hub

MOST: Final = 1000
"""The most letters of one request."""
_BLOCK: Final = 256 << 10
_Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Status(IntEnum):
    """What became of a dead letter."""

    OPEN = 0
    """It can be sent back."""
    REDRIVEN = 1
    """This request has sent it back."""
    BEFORE = 2
    """It was sent back before."""
    GONE = 3
    """The stream has removed its message, or the message has expired."""


class Letter(NamedTuple):
    """A dead letter, as far as its channel has to know it."""

    offset: _Natural
    """Of its message."""
    epoch: _Natural
    """Of the channel, when it died."""
    time: int = 0
    """Of its message, in ns since 1970; 0: not checked."""


Letters = Annotated[list[Letter], msgspec.Meta(max_length=MOST)]


def letters_of(given: Any) -> list[Letter]:
    try:
        return msgspec.convert(given, Letters)
    except msgspec.MsgspecError as error:
        raise Rejected(f"letters: {error}", code=Code.INVALID_SETTING) from error


async def look(driver: ChannelDriver, letters: list[Letter]) -> list[int]:
    """The status of each letter."""
    there = await _there(driver, letters)
    return [_status(driver, one, there) for one in letters]


async def redrive(hub: "Hub", driver: ChannelDriver, letters: list[Letter]) -> list[int]:
    """Send letters back; the status of each."""
    there = await _there(driver, letters)
    name, stream = driver.name, driver.stream
    if driver.over:
        raise Rejected(f"the channel {name!r} was removed", code=Code.NO_CHANNEL)
    machine = driver.machine
    if machine.suspended or not hub.channels.ownership.is_sure(stream.copied):
        raise StoreFailed(f"channel {name!r}: the mirror of this broker may deliver from it now; redrive again later")
    found = [_status(driver, one, there) for one in letters]
    sent = [one for one, status in zip(letters, found, strict=True) if status is Status.OPEN]
    driver.catch_up()
    order_by = machine.config.order_by
    keys = {one.offset: key_of(*there[one.offset], order_by) for one in sent} if order_by else None
    told = driver.do(machine.redrive([(one.offset, one.epoch) for one in sent], driver.now, keys))
    hub.flush()
    if told is not None:
        await told
    return [
        Status.REDRIVEN if status is Status.OPEN and machine.was_redriven(one.offset, one.epoch) else status
        for one, status in zip(letters, found, strict=True)
    ]


def _status(driver: ChannelDriver, letter: Letter, there: dict[int, tuple[str, bytes | None]]) -> Status:
    if driver.machine.was_redriven(letter.offset, letter.epoch):
        return Status.BEFORE
    return Status.OPEN if letter.offset in there else Status.GONE


async def _there(driver: ChannelDriver, letters: list[Letter]) -> dict[int, tuple[str, bytes | None]]:
    """The offsets at which the stream still has the message of the letter, with its topic and its packed fields."""
    stream, found = driver.stream, dict[int, tuple[str, bytes | None]]()
    first = following = 0
    block = Block(b"")
    for letter in sorted(letters):
        offset = letter.offset
        if not stream.first <= offset < stream.safe:
            continue
        if not first <= offset < following:
            first, following, data = await stream.fetch(offset, _BLOCK)
            block = Block(data)
        row = block.get(offset)
        if row is None:
            continue
        time, expires = row[9], row[10]
        if letter.time in {0, time} and not 0 < expires <= environment.time_ns():
            found[offset] = row[3], row[5]
    return found
