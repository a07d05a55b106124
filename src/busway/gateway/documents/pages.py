"""The list of services at `/services`, as JSON and as an HTML page, for `http/routes.py`. Values only."""

from collections.abc import Iterable
from html import escape
from typing import Any

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2em;max-width:60em}"
    "td,th{text-align:left;padding:.2em 1.5em .2em 0}code{background:#eee}"
)


def modules(topics: Iterable[tuple[str, str | None]]) -> dict[str, Any]:
    """Modules with their methods, from the topics of services. A topic has the queue of its door client, or None."""
    found: dict[str, list[dict[str, Any]]] = {}
    for topic, mq in sorted(topics):
        module, _, name = topic.rpartition("/")
        method: dict[str, Any] = {"method": name, "url": f"/{topic}", "topic": topic}
        if mq is not None:
            method["mq"] = mq
        found.setdefault(module, []).append(method)
    return {"modules": [{"module": name, "methods": methods} for name, methods in found.items()]}


def page(name: str, found: dict[str, Any]) -> str:
    """The result of modules() as an HTML page."""
    rows = "".join(
        f"<tr><td>{escape(module['module']) or '&mdash;'}</td><td><a href='{escape(method['url'], quote=True)}'>"
        f"{escape(method['method'])}</a></td><td><code>{escape(method['topic'])}</code></td>"
        f"<td>{escape(method.get('mq', ''))}</td></tr>"
        for module in found["modules"]
        for method in module["methods"]
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Services of {escape(name)}</title>"
        f"<style>{_STYLE}</style>"
        f"<h1>Services of {escape(name)}</h1><table><tr><th>module<th>method<th>topic<th>queue</tr>{rows}</table>"
        "<p>A link calls the method without parameters; <code>/module/method/1/2</code> has two, "
        "a POST of a JSON list any number.</html>"
    )
