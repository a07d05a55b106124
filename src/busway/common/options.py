"""Keyword options: `**options: Unpack[SomeOptions]`, where a TypedDict names keywords that several functions take.

A type checker sees the keywords in the annotation. The decorator shows them to help(), inspect.signature() and
completion, too, and refuses all others.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import Parameter, iscoroutinefunction, signature
from typing import Any, TypeVar, get_args

F = TypeVar("F", bound=Callable[..., Any])


def takes_options(target: Callable[..., Any] | None = None) -> Callable[[F], F]:
    """Decorate a function that passes its `**options` on to `target`, which defines their defaults.

    Without a target each default is None.
    """

    def decorate(function: F) -> F:
        own = signature(function)
        (rest,) = (each for each in own.parameters.values() if each.kind is Parameter.VAR_KEYWORD)
        (options,) = get_args(rest.annotation)
        parameters = [each for each in own.parameters.values() if each is not rest]
        defaults = None if target is None else signature(target).parameters
        for name, kind in options.__annotations__.items():
            default = None if defaults is None else defaults[name].default
            parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind))
        known = {each.name for each in parameters}

        def check(keywords: Iterable[str]) -> None:
            for name in keywords:
                if name not in known:
                    raise TypeError(f"{function.__qualname__}() got an unexpected keyword argument {name!r}")

        @wraps(function)
        def checked(*arguments: Any, **keywords: Any) -> Any:
            check(keywords)
            return function(*arguments, **keywords)

        @wraps(function)
        async def checked_async(*arguments: Any, **keywords: Any) -> Any:
            check(keywords)
            return await function(*arguments, **keywords)

        made: Any = checked_async if iscoroutinefunction(function) else checked
        made.__signature__ = own.replace(parameters=parameters)
        return made  # type: ignore[no-any-return]

    return decorate
