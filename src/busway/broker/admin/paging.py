"""Pages of long lists: the question of a request, and the rows that answer it. Values only."""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final

import msgspec

from busway.errors import Code, Rejected

MOST: Final = 2**31
LARGEST: Final = 1000
"""Rows of one page."""


class PageQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which rows of a list a request asks for."""

    search: str = ""
    """Only rows whose name contains this text, in any case."""
    order: str = ""
    """The figure that orders the rows, the largest first. Empty: by name."""
    skip: Annotated[int, msgspec.Meta(ge=0, le=MOST)] = 0
    most: Annotated[int, msgspec.Meta(ge=0, le=LARGEST)] = 100

    def has(self, *texts: str) -> bool:
        """Whether one of the texts contains the text that is searched for."""
        wanted = self.search.casefold()
        return not wanted or any(wanted in text.casefold() for text in texts)

    @property
    def whole(self) -> bool:
        """Whether the request asks for all rows by name."""
        return not self.search and not self.order and not self.skip and self.most == MOST

    def page(self, rows: Iterable[Any], name: Callable[[Any], Any], figure: Callable[[Any, str], Any]) -> list[Any]:
        """The rows of the page. `figure` returns the value by which the rows are ordered, or raises KeyError."""
        listed = sorted(rows, key=name)
        if self.order:
            try:
                listed.sort(key=lambda row: figure(row, self.order), reverse=True)
            except (KeyError, TypeError) as error:
                raise Rejected(f"order: there is no figure {self.order!r}", code=Code.INVALID_SETTING) from error
        return listed[self.skip : self.skip + self.most]
