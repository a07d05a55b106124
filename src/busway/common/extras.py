"""Which command installs the packages of an optional feature.

The command names those packages and not `busway[extra]`: Busway itself may run from a checkout and be on no package index.
"""

import shlex
from importlib import metadata


def install_command(extra: str) -> str:
    """A `pip install` command with the packages of this extra; it works in a checkout and with an installed wheel."""
    try:
        listed = metadata.requires("busway") or ()
    except metadata.PackageNotFoundError:
        listed = ()
    wanted = [one.partition(";") for one in listed]
    packages = [name.strip() for name, _, marker in wanted if f"extra == '{extra}'" in marker.replace('"', "'")]
    if not packages:
        return f"pip install '.[{extra}]' (in a checkout of Busway)"
    return f"pip install {' '.join(shlex.quote(name) for name in packages)}"
