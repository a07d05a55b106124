"""Builds the command that installs the packages of an optional feature, for error messages.

The command names those packages and not `busway[extra]`, since Busway may run from a checkout.
"""

import shlex
from importlib import metadata


def install_command(extra: str) -> str:
    """Return a `pip install` command for the packages of this extra. It works in a checkout and with a wheel."""
    try:
        listed = metadata.requires("busway") or ()
    except metadata.PackageNotFoundError:
        listed = ()
    requirements = [requirement.partition(";") for requirement in listed]
    packages = [name.strip() for name, _, marker in requirements if f"extra == '{extra}'" in marker.replace('"', "'")]
    if not packages:
        return f"pip install '.[{extra}]' (in a checkout of Busway)"
    return f"pip install {' '.join(shlex.quote(name) for name in packages)}"
