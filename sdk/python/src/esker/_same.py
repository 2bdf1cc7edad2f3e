"""The async classes have the blocking ones' documentation, word for word."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T", bound=type)


def documented_like(model: type) -> Any:
    """Gives a class and its methods the docstrings of `model` where they have none."""

    def give(cls: T) -> T:
        cls.__doc__ = cls.__doc__ or model.__doc__
        for name, member in vars(cls).items():
            function = getattr(member, "__func__", member)
            twin = getattr(model, name, None)
            if callable(function) and twin is not None and not function.__doc__:
                function.__doc__ = twin.__doc__
        return cls

    return give
