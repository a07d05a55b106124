"""Brokers that form one bus: who belongs to it, the links between them, and what crosses those."""
