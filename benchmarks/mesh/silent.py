"""What a mesh costs in which nothing happens: CPU time of ten brokers, beside that of one in no cluster."""

import time

from .nodes import Mesh

NODES = 10
SETTLE = 3.0
"""Seconds after the last link is up."""
Values = dict[str, float]


def idles(seconds: float, nodes: int = NODES) -> Values:
    """CPU as a part of one core: of all brokers, of each link, and of a broker without links."""
    with Mesh() as made:
        made.add(nodes)
        lone = made.alone()
        lone.wait_until_ready()
        made.wait_until_linked()
        time.sleep(SETTLE)
        begin = time.monotonic()
        cpu, base = sum(node.cpu() for node in made.nodes), lone.cpu()
        time.sleep(seconds)
        cpu, base = sum(node.cpu() for node in made.nodes) - cpu, lone.cpu() - base
        elapsed = time.monotonic() - begin
        links = nodes * (nodes - 1) // 2
        return {
            "nodes": nodes,
            "links": links,
            "all": cpu / elapsed,
            "each_link": cpu / elapsed / links,
            "alone": base / elapsed,
        }
