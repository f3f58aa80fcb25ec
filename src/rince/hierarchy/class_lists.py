"""Lists of classes, to use a part of some data: those that ship, or text files with one class name a line."""

from __future__ import annotations

import difflib
from collections import Counter
from importlib.resources import files
from pathlib import Path

from rince.config.plain_yaml import NotPlainYamlError, load_yaml
from rince.errors import DataError


def shipped_lists() -> list[str]:
    """Names of the lists that ship."""
    return sorted(entry.name.removesuffix(".txt") for entry in (files("rince") / "hierarchy" / "lists").iterdir())


def read_class_list(source: str) -> tuple[str, ...]:
    """The class names of a list.

    Args:
        source: a name that ships, such as `imagenet100`; a text file with one class name a line, where empty lines and
            lines that start with `#` are skipped; or a YAML file that holds a list.
    """
    if source in shipped_lists():
        text = (files("rince") / "hierarchy" / "lists" / f"{source}.txt").read_text("utf-8")
    elif Path(source).is_file():
        try:
            text = Path(source).read_text("utf-8-sig")
        except UnicodeDecodeError as error:
            raise DataError(f"class list {source!r} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
        except OSError as error:
            raise DataError(f"class list {source!r} cannot be read: {error.strerror or error}") from None
    else:
        close = difflib.get_close_matches(source, shipped_lists(), n=1)
        guess = f"did you mean {close[0]!r}? " if close else ""
        raise DataError(
            f"there is no class list and no file {source!r}; {guess}give a text file with one class name a line, or "
            f"one of {', '.join(shipped_lists())}"
        )
    names = _yaml_names(text, source) if Path(source).suffix in (".yaml", ".yml") else _lines(text)
    if not names:
        raise DataError(f"class list {source!r} is empty; write one class name a line")
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise DataError(f"class list {source!r} holds {name!r} {count} times; keep one")
    return names


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#"))


def _yaml_names(text: str, source: str) -> tuple[str, ...]:
    try:
        found = load_yaml(text)
    except NotPlainYamlError as error:
        raise DataError(f"class list {source!r} is not valid YAML: {error}") from None
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise DataError(f"class list {source!r} must hold a list of names, such as `- poodle`; quote what is no text")
    return tuple(found)


def split_source(text: str) -> tuple[str, str | None]:
    """`DIR/imagenet:imagenet-outliers-1` → the data source and the list of its classes to take; None for all.

    A path that exists is taken as it is, whatever colons it has.
    """
    source, colon, classes = text.rpartition(":")
    if not (colon and source and classes) or Path(text).exists():
        return text, None
    return source, classes


def outlier_name(text: str) -> str:
    """What an outlier set is called in results: by its list of classes, else by the last part of its source."""
    source, classes = split_source(text)
    return Path(classes).stem if classes else Path(source).resolve().name
