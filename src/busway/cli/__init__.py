"""The command line: `busway VERB`, one file per verb. main() is the entry point."""

import sys

from busway.common.extras import install_command

__all__ = ["main"]


def main() -> None:
    try:
        from busway.cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"typer", "rich", "click"}:
            raise
        print(f"busway: the command line needs {error.name}: {install_command('cli')}", file=sys.stderr)
        sys.exit(1)
    app(prog_name="busway")
