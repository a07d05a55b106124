"""The console: a web page that observes and operates the bus, as a client of it with the rights of its user."""
