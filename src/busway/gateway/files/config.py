"""What can be set of the file door. A frozen value that checks itself when made."""

from dataclasses import dataclass, fields
from typing import Final

from busway.common.checks import check_count, check_seconds
from busway.common.durations import Seconds
from busway.fuse.format import HEAD, stride
from busway.settings import KiB, MiB

LONGEST_NAME: Final = 511
"""Bytes of the name of a channel."""
PRIVATE: Final = 0o600
SHARED: Final = 0o666


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A mount of the bus. Counts and bytes are limits, times are seconds."""

    channels: int = 1024
    """Channels; they are never removed."""
    messages: int = 4096
    """Messages that are kept for those who read `fusebus`; the oldest go."""
    bytes: int = 4 * MiB
    """And bytes of them."""
    max_message: int = 1016
    """Longest payload of a message that is written to `fusebus`."""
    clients: int = 16_384
    """Open files `fusebus`."""
    subscriptions: int = 1024
    """Subscriptions of one of them."""
    unsent: int = 4 * MiB
    """Bytes that wait for the bus; writers wait beyond that."""
    line: int = 1 * MiB
    """Longest line that is written to a file of a topic, and longest request to a service."""
    followed: int = 1024
    """Topics that are followed for files; the one that was not used for longest goes, if it is not open."""
    kept: int = 256 * KiB
    """Bytes of lines that a followed topic keeps."""
    listed: int = 1024
    """Messages of a stream that are listed, the newest."""
    request: Seconds = Seconds(5.0)
    """Time that a service has for an answer."""
    allow_other: bool = False
    """Whether other users than the one who mounts may use it."""
    mode: int | None = None
    """Permissions of files; None: for the owner alone, or for everybody with `allow_other`."""
    empty_reads: bool = False
    """Whether a read of `fusebus` that finds nothing returns no bytes, as at the end of a file, instead of waiting."""
    documented: bool = False
    """Only the two files of the two-file protocol."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.type is int:
                check_count(f"the setting {field.name}", getattr(self, field.name))
            elif field.type is float:
                seconds = check_seconds(f"the setting {field.name}", getattr(self, field.name), zero=False)
                object.__setattr__(self, field.name, seconds)
        if self.mode is not None and not 0 < self.mode <= 0o777:
            raise ValueError(f"the setting mode must be between 001 and 777, but is {self.mode:o}")
        if stride(self.max_message) > self.bytes:
            raise ValueError(
                f"a message of {self.max_message} bytes (setting max_message) is more than is kept: {self.bytes} (setting bytes)"
            )
        if self.max_message + HEAD > 1 << 31:
            raise ValueError("the setting max_message must be less than 2 GiB: that is the longest write")

    @property
    def permissions(self) -> int:
        """Of files."""
        if self.mode is not None:
            return self.mode
        return SHARED if self.allow_other else PRIVATE

    @property
    def folder_permissions(self) -> int:
        """Of folders: who may read them may enter them."""
        return self.permissions | (self.permissions & 0o444) >> 2
