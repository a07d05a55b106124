"""The flag bits of the wire protocol that the broker uses in Python (docs/protocol.md, "Flags")."""

from typing import Final

from busway.settings import Scope

FIELDS: Final = 0x01
"""PUBLISH PUSH REQUEST REPLY DELIVER: the body begins with fields."""

# PUBLISH and DELIVER
POST: Final = 0x08
PIN: Final = 0x10
# PUBLISH
CONFIRM: Final = 0x02
UNKEEP: Final = 0x20
# DELIVER
KEPT: Final = 0x02
WITHDRAWN: Final = 0x04
# SUBSCRIBE
NO_ECHO: Final = 0x01
WATCH: Final = 0x02
SINCE: Final = 0x08
# REQUEST
GATHER: Final = 0x02
# REPLY
ERROR: Final = 0x04
PARTIAL: Final = 0x08
END: Final = 0x10
# SERVE
SHARED: Final = 0x01
ASKS: Final = 0x02
# SUBSCRIBE and SERVE
WAIT: Final = 0x40
# REQUEST and SERVE
LOCAL: Final = 0x04
REMOTE: Final = 0x08


def scope_of(flags: int) -> Scope:
    """The scope of a REQUEST, a SERVE or a shifted SUBSCRIBE. Both bits together mean the same as none."""
    return {LOCAL: "local", REMOTE: "remote"}.get(flags & (LOCAL | REMOTE), "global")  # type: ignore[return-value]
