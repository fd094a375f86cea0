"""Refusing what the stand-in does not do: the package's arguments are all there, most of them at their default only."""

from __future__ import annotations

import functools
import inspect


def only(*done: str):
    """Decorate a function of the package's signature: arguments that are not in `done` must be left at their default.

    An argument that the signature has not is Python's own TypeError.
    """

    def decorate(function):
        signature = inspect.signature(function)

        @functools.wraps(function)
        def checked(*arguments, **named):
            bound = signature.bind(*arguments, **named)
            for name, value in bound.arguments.items():
                parameter = signature.parameters[name]
                if name in (*done, "self") or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                    continue
                if parameter.default is parameter.empty or value != parameter.default:
                    raise NotImplementedError(f"the stand-in's {function.__qualname__} knows no {name}={value!r}")
            return function(*arguments, **named)

        return checked

    return decorate
