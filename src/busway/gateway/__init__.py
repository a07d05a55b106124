"""Doors: other ways into the bus than its own protocol. Each is a client of the broker that it runs beside."""
