"""How the command line shows its flags: one without a value shows none."""

from typing import Any

from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))


class Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))


def _plain(parameters: list[Any]) -> list[Any]:
    """Without the type that typer writes behind a flag: `--json` instead of `--json <bool>`."""
    for one in parameters:
        if getattr(one, "is_flag", False):
            one.metavar = ""
    return parameters
