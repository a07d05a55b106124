"""Permissions of sessions: what the drivers in Python check before they act for a client. The engine checks the rest."""

from typing import TYPE_CHECKING

from busway.authority.grants import NUMBERS, Verb
from busway.errors import Code, Forbidden

if TYPE_CHECKING:
    from busway.broker.runtime import Runtime


def demand(runtime: "Runtime", conn: int, verb: Verb, *topics: str) -> None:
    """Raise Forbidden unless the user of a connection may use a verb on all these topics or patterns."""
    session = runtime.sessions.get(conn)
    if session is None or session.grants is None:
        return
    number = NUMBERS[verb]
    for topic in topics:
        if not session.grants.may(number, topic):
            raise Forbidden(runtime.engine.forbid(conn, number, topic), code=Code.FORBIDDEN)
