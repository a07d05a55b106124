"""The same work done by Busway and by other message systems, in one run on one machine.

Each system is one adapter in `systems/`; `work.py` drives them all alike; `role.py` is what runs in each process.
"""
