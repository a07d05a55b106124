"""The asyncio client of a broker: connect() makes a Bus, which publishes, subscribes, requests and serves."""

from busway.client.bus import Bus, connect
from busway.client.connection.events import Event, EventStream
from busway.client.services.gather import Gathering
from busway.client.services.service import Request, Service
from busway.client.subscriptions.subscription import Subscription

__all__ = ["Bus", "Event", "EventStream", "Gathering", "Request", "Service", "Subscription", "connect"]
