"""Keyword options: `**options: Unpack[SomeOptions]`, where a TypedDict names keywords that several functions take.

A type checker sees the keywords in the annotation. The decorator shows them to help(), inspect.signature() and
completion, too, and refuses all others.
"""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Any, TypeVar, get_args

F = TypeVar("F", bound=Callable[..., Any])


def takes_options(target: Callable[..., Any]) -> Callable[[F], F]:
    """Decorate a function that passes its `**options` on to `target`, which defines their defaults."""

    def decorate(function: F) -> F:
        own = signature(function)
        (rest,) = (each for each in own.parameters.values() if each.kind is Parameter.VAR_KEYWORD)
        (options,) = get_args(rest.annotation)
        defaults = signature(target).parameters
        named = [each for each in own.parameters.values() if each is not rest]
        added = [defaults[name].replace(kind=Parameter.KEYWORD_ONLY) for name in options.__annotations__]
        known = {each.name for each in [*named, *added]}

        @wraps(function)
        def checked(*arguments: Any, **keywords: Any) -> Any:
            for name in keywords:
                if name not in known:
                    raise TypeError(f"{function.__qualname__}() got an unexpected keyword argument {name!r}")
            return function(*arguments, **keywords)

        checked.__signature__ = own.replace(parameters=[*named, *added])  # type: ignore[attr-defined]
        return checked  # type: ignore[return-value]

    return decorate
