"""Where messages are read from, while brokers come and go."""

from pathlib import Path

import pytest

from busway import sync
from busway.spark.endpoints import Endpoints
from busway.spark.options import Options, read_options
from busway.spark.ranges import Range
from busway.spark.source import tail
from tests.support.spark.bus import served


def test_a_broker_that_is_started_again_is_waited_for(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'bus'}"
    with sync.serve(address, data=tmp_path / "data") as server, sync.connect(address) as bus:
        bus.create_stream("orders", ["orders/**"])
        bus.publish_many("orders/a", [b"x" * 1000] * 5000, durable=True)
        guid = bus.streams()[0].broker
        places = Endpoints(Options(urls=(address,), streams=("orders",), timeout=30))
        part = Range(guid, "orders", 0, 5000)
        found = places.read(part, ["**"], ["sequence"], fail=True)
        rows = next(found).column("sequence").to_pylist()
        assert len(rows) < 5000
        server.stop()
    with sync.serve(address, data=tmp_path / "data"):
        for batch in found:
            rows += batch.column("sequence").to_pylist()
        assert [one.next for one in places.available(["orders"])] == [5000]
    assert rows == list(range(1, 5001)), "each once and in order, over the restart"
    places.close()


def test_a_broker_that_stays_away_is_told(tmp_path: Path) -> None:
    with served(tmp_path / "data") as bus:
        places = Endpoints(Options(urls=(bus.url,), timeout=0.5))
        url = bus.url
    with pytest.raises(
        ConnectionError, match=r"the connection was lost and not restored within 0.5 s; raise the option timeout"
    ):
        places.available()
    places.close()
    with pytest.raises(ConnectionError, match=f"{url} can't be reached"):
        Endpoints(Options(urls=(url,), timeout=0.5))


@pytest.mark.parametrize("kind", ["url", "path"])
def test_live_messages_of_a_lake_of_some_topics(tmp_path: Path, kind: str) -> None:
    with served(tmp_path / "data") as bus:
        bus.stream("orders")
        for topic in ("eu/a", "us/a", "eu/b"):
            bus.bus.publish(f"orders/{topic}", topic, durable=True)
        options = read_options(bus.options(kind) | {"topics": "orders/*/a", "columns": "payload"})
        part = Range(bus.guid, "orders", 0, 3)
        with Endpoints(options) as places:
            found = tail._messages(options, places, part, ["orders/eu/*"], options.columns, fail=True)
    assert [text for batch in found for text in batch.column("payload").to_pylist()] == [b"eu/a"]
