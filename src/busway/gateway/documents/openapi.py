"""The OpenAPI 3.1 document of the HTTP port, from the file openapi.json beside this module.

`http/routes.py` serves it at `/openapi.json`. The file is JSON because serving needs no YAML library.
"""

from importlib import resources
from typing import Any

import msgspec

from busway import _core


def document(*, title: str = "Busway", url: str = "/", keys: bool = False) -> dict[str, Any]:
    """The document. `keys`: every command but `ping` needs `apiKey` and `signature`."""
    result: dict[str, Any] = msgspec.json.decode(resources.files(__package__).joinpath("openapi.json").read_bytes())
    result["info"] |= {"title": title, "version": _core.__version__}
    result["servers"] = [{"url": url}]
    if keys:
        result["components"]["schemas"]["Signed"]["required"] = ["apiKey", "signature"]
    return result
