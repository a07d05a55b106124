"""What a cluster costs: brokers as processes of their own, linked over loopback. See README.md, "The mesh"."""
