"""Names of a package that are loaded when they are first used, each from the module it lives in."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any


def load_on_use(package: str, names: Sequence[str], homes: Sequence[str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    Args:
        package: its name.
        names: that it has.
        homes: modules below it where they live, looked into in this order.
    """

    def load(name: str) -> Any:
        if name in names:
            for home in homes:
                module = import_module(f"{package}.{home}")
                if name in vars(module):
                    return vars(module)[name]
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load
