"""Test vectors of the protocol page, and a session to send them with."""

from busway import _core
from tests.support import page
from tests.support.pair import LIMITS

VECTORS = page.vectors()


def session(number: int, taken: int = 0) -> _core.Session:
    """An open session whose counter has given `taken` numbers already."""
    made = _core.Session(number)
    made.attach(lambda: None)
    made.open(**{key: LIMITS[key] for key in ("frame", "topic", "fields", "topics")})
    for _ in range(taken):
        made.unsubscribe(1)
    made.take()
    return made
