"""What a browser may look at: the services that there are, as a page and as JSON. Values only."""

from collections.abc import Iterable
from html import escape
from typing import Any

_STYLE = "body{font:15px/1.5 system-ui,sans-serif;margin:2em;max-width:60em}td,th{text-align:left;padding:.2em 1.5em .2em 0}code{background:#eee}"


def modules(topics: Iterable[tuple[str, str | None]]) -> dict[str, Any]:
    """Topics of services, each with the queue of the client that offers it or None, as modules with their methods."""
    found: dict[str, list[dict[str, Any]]] = {}
    for topic, mq in sorted(topics):
        module, _, method = topic.rpartition("/")
        one: dict[str, Any] = {"method": method, "url": f"/{topic}", "topic": topic}
        if mq is not None:
            one["mq"] = mq
        found.setdefault(module, []).append(one)
    return {"modules": [{"module": name, "methods": methods} for name, methods in found.items()]}


def page(name: str, found: dict[str, Any]) -> str:
    """The same to look at."""
    rows = "".join(
        f"<tr><td>{escape(one['module']) or '&mdash;'}</td><td><a href='{escape(method['url'], quote=True)}'>"
        f"{escape(method['method'])}</a></td><td><code>{escape(method['topic'])}</code></td><td>{escape(method.get('mq', ''))}</td></tr>"
        for one in found["modules"]
        for method in one["methods"]
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Services of {escape(name)}</title><style>{_STYLE}</style>"
        f"<h1>Services of {escape(name)}</h1><table><tr><th>module<th>method<th>topic<th>queue</tr>{rows}</table>"
        "<p>A link calls the method without parameters; <code>/module/method/1/2</code> has two, a POST of a JSON list any number.</html>"
    )
