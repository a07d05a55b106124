"""CloudEvents 1.0: events as values, their mapping to messages, and the HTTP endpoint `/events` of the JSON door."""

from busway.gateway.cloudevents.event import Event, EventError, decode, to_batch, to_binary, to_json
from busway.gateway.cloudevents.mapping import from_message, to_message

__all__ = ["Event", "EventError", "decode", "from_message", "to_batch", "to_binary", "to_json", "to_message"]
