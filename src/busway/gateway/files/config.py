"""Settings of the file door: `Mount`, a frozen value that checks itself when the command line or a program makes it."""

from dataclasses import dataclass, fields
from typing import Final

from busway.common.checks import check_count, check_seconds
from busway.common.durations import Seconds
from busway.fuse.format import HEAD, stride
from busway.settings import KiB, MiB

LONGEST_NAME: Final = 511
"""Longest name of a channel, in bytes."""
PRIVATE: Final = 0o600
SHARED: Final = 0o666


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """The settings of a mount. Counts and bytes are limits, times are seconds."""

    channels: int = 1024
    """Channels of `fusebus`, which are never removed."""
    messages: int = 4096
    """Messages buffered for the readers of `fusebus`; the oldest are dropped."""
    bytes: int = 4 * MiB
    """Bytes of messages buffered for the readers of `fusebus`; the oldest are dropped."""
    max_message: int = 1016
    """Longest payload of a message written to `fusebus`."""
    clients: int = 16_384
    """Clients of `fusebus`, which are its open files."""
    subscriptions: int = 1024
    """Subscriptions of one client of `fusebus`."""
    unsent: int = 4 * MiB
    """Bytes queued for the bus; above that writers wait."""
    line: int = 1 * MiB
    """Longest line written to a topic file, and longest request to a service."""
    followed: int = 1024
    """Topics followed for files; the topic that was unused for longest is dropped, if its file is not open."""
    kept: int = 256 * KiB
    """Bytes of lines buffered per followed topic."""
    listed: int = 1024
    """Newest messages of a stream that its folder lists."""
    request: Seconds = Seconds(5.0)
    """Time within which a service must answer."""
    allow_other: bool = False
    """Whether other users than the mounting one may use the mount."""
    mode: int | None = None
    """Permissions of files; None: for the owner alone, or for all users with `allow_other`."""
    empty_reads: bool = False
    """Whether a read of `fusebus` without a message returns no bytes, as at the end of a file, instead of waiting."""
    documented: bool = False
    """Whether the mount has only the two files of the two-file protocol."""

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
                f"a message of {self.max_message} bytes (setting max_message) does not fit into the buffer of "
                f"{self.bytes} bytes (setting bytes)"
            )
        if self.max_message + HEAD > 1 << 31:
            raise ValueError("the setting max_message must be less than 2 GiB, the longest write")

    @property
    def permissions(self) -> int:
        """Permissions of files."""
        if self.mode is not None:
            return self.mode
        return SHARED if self.allow_other else PRIVATE

    @property
    def folder_permissions(self) -> int:
        """Permissions of folders: users who may read a folder may also enter it."""
        return self.permissions | (self.permissions & 0o444) >> 2
