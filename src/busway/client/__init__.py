"""The client: a bus to publish on, subscribe to, ask and serve."""

from busway.client.bus import Bus, connect
from busway.client.events import Event, EventStream
from busway.client.replies import Gathering
from busway.client.service import Request, Service
from busway.client.subscription import Subscription

__all__ = ["Bus", "Event", "EventStream", "Gathering", "Request", "Service", "Subscription", "connect"]
