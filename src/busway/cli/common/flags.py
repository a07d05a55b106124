"""Flags that several verbs share, and the environment variable that every flag of a verb gets. Used by all verbs."""

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias, TypeVar, get_args

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import OptionInfo

from busway.cli.common import completion, values
from busway.settings import Scope

T = TypeVar("T")

Topic = Annotated[
    str,
    typer.Argument(
        help="Topic, such as price/eth/eur.",
        show_default=False,
        parser=values.topic,
        metavar="TOPIC",
        autocompletion=completion.topics,
    ),
]
Pattern: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--topic",
        help="Only messages of this topic or pattern.",
        parser=values.pattern,
        autocompletion=completion.topics,
        metavar="PATTERN",
        show_default=False,
    ),
]
Body = Annotated[
    str | None, typer.Argument(help="Payload; - reads it from stdin; empty if left out.", show_default=False)
]
File = Annotated[str | None, typer.Option("--file", "-F", help="Read the payload from this file.", metavar="FILE")]
Field = Annotated[
    list[str] | None,
    typer.Option(
        "--field",
        "-f",
        help="A field of the message; repeatable. A value that is valid JSON is parsed: -f size=5 -f venue=krk.",
        metavar="NAME=VALUE",
        show_default=False,
    ),
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        "-w",
        help="A rule for a field; repeatable. name=value: equal, a pattern with * or ?, or one of a JSON list; a name alone requires "
        "the field; name=re:REGEX; name=expr:CEL with the field as value; expr:CEL over the whole message.",
        metavar="NAME=RULE",
        show_default=False,
    ),
]
Lines = Annotated[bool, typer.Option("--lines", "-l", help="Each line of stdin (or --file) is a message.")]
Count = Annotated[
    int | None,
    typer.Option(
        "--count", "-n", help="End after this many messages.", parser=values.count, metavar="N", show_default=False
    ),
]
Repeat = Annotated[
    int | None,
    typer.Option(
        "--count", "-n", help="Number of times to send the message.", parser=values.count, metavar="N", show_default="1"
    ),
]
For = Annotated[
    float | None,
    typer.Option(
        "--for", help="End after this time (10s, 5m, 2h).", parser=values.duration, metavar="TIME", show_default=False
    ),
]
Rate = Annotated[
    float | None,
    typer.Option("--rate", help="Largest number of messages per second.", min=0.001, metavar="N", show_default=False),
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", "-t", help="Time to wait.", parser=values.duration, metavar="TIME", show_default="5s"),
]
Reach = Annotated[
    Scope,
    typer.Option(
        "--scope",
        help="Clients of a cluster that are addressed: all (global), those of this node (local), or those of other nodes (remote).",
    ),
]
Raw = Annotated[bool, typer.Option("--raw", "-r", help="Print payload bytes only, without newlines.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON: one object, or one object per line.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no notes on stderr, only errors.")]


def checked(make: Callable[[], T]) -> T:
    """Return what `make` returns. Its ValueError or TypeError becomes an error of usage (exit code 2)."""
    try:
        return make()
    except (ValueError, TypeError) as error:
        raise typer.BadParameter(str(error)) from None


def with_environment(verb: Callable[..., None]) -> Callable[..., None]:
    """Decorate a verb: give each flag without an environment variable the variable BUSWAY_<VERB>_<FLAG>."""

    @functools.wraps(verb)
    def same(**given: Any) -> None:
        verb(**given)

    signature = inspect.signature(verb, eval_str=True)
    parameters = [
        parameter.replace(
            annotation=_with_variable(parameter.annotation, verb.__name__), kind=inspect.Parameter.KEYWORD_ONLY
        )
        for parameter in signature.parameters.values()
    ]
    same.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return same


def _with_variable(annotation: Any, verb: str) -> Any:
    if annotation is typer.Context:
        return annotation
    kind, option = get_args(annotation)
    if not isinstance(option, OptionInfo) or option.envvar:
        return annotation
    option = copy.copy(option)
    names = (
        option.default,
        *(option.param_decls or ()),
    )  # until it parses the option, typer stores its first name as the default
    flag = next(str(name) for name in names if str(name).startswith("--")).partition("/")[0]
    option.envvar = f"BUSWAY_{verb}_{flag.lstrip('-')}".replace("-", "_").upper()
    return Annotated[kind, option]


class Command(TyperCommand):
    """A typer command. Its help shows no value type behind a switch, and its errors are the texts of our parsers."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")  # typer checks values by pydantic
            raise

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))


class Group(TyperGroup):
    """A typer group whose help shows no value type behind a switch."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))


def _plain(parameters: list[Any]) -> list[Any]:
    """Remove the value type that typer shows behind a switch: `--json` instead of `--json <bool>`."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters
