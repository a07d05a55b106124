"""The events of a blocking client."""

from busway.client.connection.events import Event, EventStream
from busway.errors import Closed
from busway.sync.base import Results


class Events(Results[EventStream, Event]):
    """Iterator over the events of a client, until its bus is closed."""

    def __next__(self) -> Event:
        try:
            return super().__next__()
        except Closed:  # the loop has ended with the last bus
            raise StopIteration from None

    @property
    def dropped(self) -> int:
        """Number of events that were lost because this iterator was not read in time."""
        return self._inner.dropped
