"""Clusters: the brokers that form one bus, the links between them, and the protocols over those links."""
