"""What the JSON door does beside a plain WebSocket echo server: messages a second, acknowledgements in time, a client that never reads."""
