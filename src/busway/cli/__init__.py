"""The command line `busway VERB`. The script `busway` and `python -m busway` call main(). Each verb has a module."""

import sys

from busway.common.extras import install_command

__all__ = ["main"]


def main() -> None:
    """Run the verb that sys.argv names. If the extra `cli` is not installed, print the command that installs it."""
    try:
        from busway.cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"typer", "rich", "click"}:
            raise
        print(f"busway: the command line needs {error.name}: {install_command('cli')}", file=sys.stderr)
        sys.exit(1)
    app(prog_name="busway")
