"""Redrive: sends dead letters back to the channel that gave up their messages.

Nothing is copied, because the message is still in its stream. One journal entry of the channel records that the message
is open again and that its letter was sent back. So each letter is sent back once, also if the broker is killed.
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
    from busway.broker.runtime import Runtime

MOST: Final = 1000
"""The most letters of one request."""
_BLOCK: Final = 256 << 10
_Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Status(IntEnum):
    """The status of a dead letter."""

    OPEN = 0
    """The letter can be sent back."""
    REDRIVEN = 1
    """This request has sent the letter back."""
    BEFORE = 2
    """An earlier request has sent the letter back."""
    GONE = 3
    """The stream has removed the message of the letter, or that message has expired."""


class Letter(NamedTuple):
    """A dead letter as its channel identifies it."""

    offset: _Natural
    """The offset of the message."""
    epoch: _Natural
    """The epoch of the channel when the message became a dead letter."""
    time: int = 0
    """The time of the message, in ns since 1970; 0: not checked."""


Letters = Annotated[list[Letter], msgspec.Meta(max_length=MOST)]


def letters_of(given: Any) -> list[Letter]:
    try:
        return msgspec.convert(given, Letters)
    except msgspec.MsgspecError as error:
        raise Rejected(f"letters: {error}", code=Code.INVALID_SETTING) from error


async def look(driver: ChannelDriver, letters: list[Letter]) -> list[int]:
    """The status of each letter."""
    existing = await _existing(driver, letters)
    return [_status(driver, letter, existing) for letter in letters]


async def redrive(runtime: "Runtime", driver: ChannelDriver, letters: list[Letter]) -> list[int]:
    """Send letters back; the status of each."""
    existing = await _existing(driver, letters)
    name = driver.name
    if driver.over:
        raise Rejected(f"the channel {name!r} was removed", code=Code.NO_CHANNEL)
    machine = driver.machine
    if machine.suspended:
        raise StoreFailed(f"channel {name!r}: another broker may own it, and deliver from it; redrive again later")
    found = [_status(driver, letter, existing) for letter in letters]
    sent = [letter for letter, status in zip(letters, found, strict=True) if status is Status.OPEN]
    driver.catch_up()
    order_by = machine.config.order_by
    keys = {letter.offset: key_of(*existing[letter.offset], order_by) for letter in sent} if order_by else None
    written = driver.do(machine.redrive([(letter.offset, letter.epoch) for letter in sent], driver.now, keys))
    runtime.flush()
    if written is not None:
        await written
    return [
        Status.REDRIVEN if status is Status.OPEN and machine.was_redriven(letter.offset, letter.epoch) else status
        for letter, status in zip(letters, found, strict=True)
    ]


def _status(driver: ChannelDriver, letter: Letter, existing: dict[int, tuple[str, bytes | None]]) -> Status:
    if driver.machine.was_redriven(letter.offset, letter.epoch):
        return Status.BEFORE
    return Status.OPEN if letter.offset in existing else Status.GONE


async def _existing(driver: ChannelDriver, letters: list[Letter]) -> dict[int, tuple[str, bytes | None]]:
    """The offsets at which the stream still has the message of a letter, with its topic and its packed fields."""
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
