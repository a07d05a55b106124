"""Whether a broker makes a publisher wait: the FLOW frames that its client gets."""

from typing import Any

import busway


def record_stops(bus: busway.Bus) -> list[bool]:
    """A list that grows by each FLOW frame of this connection: True stops its publishes, False lets them go on."""
    connection: Any = bus._core.connection
    assert connection is not None
    stops: list[bool] = []
    stop = connection.stop

    def recorded(*, stop: bool, then: Any = stop) -> None:
        stops.append(stop)
        then(stop=stop)

    connection.stop = recorded
    return stops
