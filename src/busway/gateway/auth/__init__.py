"""Keys of the JSON door: signatures of requests, grants of topics, and protection against replays."""

from busway.gateway.auth.signatures import sign, signed, signed_text, verify

__all__ = ["sign", "signed", "signed_text", "verify"]
