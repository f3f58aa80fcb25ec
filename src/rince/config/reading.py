"""From a file or a name to a recipe, with overrides; every mistake is told at once, with its path.

A recipe file may build on another by one level of `base:`, and hold blocks `long:`, `reduced:` and `pretrained:`, each
merged over the rest when `scale` is its name, and `finetuned:`, merged where `model.tune=all` is asked for. Where a
layer names another kind, keys that the new kind does not have are left behind with the old one. Nothing in a recipe is
executed, interpolated or imported.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from rince.config.changes import is_same_row
from rince.config.kinds import GROUPS, keys_of, kinds_of, recipe_class
from rince.config.older import upgraded
from rince.config.plain_yaml import NotPlainYamlError, load_yaml
from rince.config.recipe import BLOCKS, FINETUNED, Recipe, Scale
from rince.errors import ConfigError, shown


def recipe_names() -> list[str]:
    """Names of the recipes that ship, table/row."""
    root = files("rince") / "recipes" / "configs"
    return sorted(
        f"{table.name}/{row.name.removesuffix('.yaml')}"
        for table in root.iterdir()
        if table.is_dir()
        for row in table.iterdir()
        if row.name.endswith(".yaml") and not row.name.startswith("_")
    )


def recipe_text(name: str) -> str:
    """The file of a recipe that ships, comments included."""
    if name not in recipe_names():
        close = difflib.get_close_matches(name, recipe_names(), n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(close)}?" if close else "`rince ls` lists the recipes"
        raise ConfigError(f"there is no recipe and no file called {name!r}; {hint}")
    return (files("rince") / "recipes" / "configs" / f"{name}.yaml").read_text()


def recipe_about(name: str) -> str:
    """What a recipe that ships says of itself, without a look at the rest."""
    return str(_parse(recipe_text(name), name).get("about", ""))


def load_recipe(source: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe from its name or file, with `a.b.c=value` overrides applied.

    Raises:
        ConfigError: with every mistake at once, each with its path.
    """
    return of_its_row(validate(recipe_values(source, overrides), str(source)))


def of_its_row(recipe: Recipe) -> Recipe:
    """A recipe, which stands for no row of the paper any more if other settings than its row has were chosen."""
    if recipe.paper is None:
        return recipe
    row = next((name for name in _rows_of(recipe.paper.table) if _paper_of(name) == recipe.paper.model_dump()), None)
    if row is not None:
        values = recipe_values(row, [f"scale={recipe.scale}"] if recipe.scale != "full" else [])
        if is_same_row(recipe, validate(values, row)):
            return recipe
    return recipe.model_copy(update={"paper": None})


@cache
def _rows_of(table: str) -> list[str]:
    """Recipes that ship and may stand for a row of a table: those of its folder first."""
    return sorted(recipe_names(), key=lambda name: not name.startswith(f"{table}/"))


@cache
def _paper_of(name: str) -> dict[str, str] | None:
    return _parse(recipe_text(name), name).get("paper")


def recipe_values(source: str | Path | Recipe, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The plain values of a recipe, given by name, file or as it is, with overrides applied; not checked yet."""
    values = source.model_dump(mode="json", exclude_none=True) if isinstance(source, Recipe) else _read(source)
    changes = [_parse_override(text) for text in overrides]
    scale = next((value for path, value in reversed(changes) if path == ["scale"]), values.get("scale", "full"))
    if scale not in get_args(Scale):
        raise ConfigError(f"scale must be full, long, reduced or pretrained, got {scale!r}")
    name = source.name if isinstance(source, Recipe) else source
    blocks = {block: values.pop(block, None) for block in BLOCKS}
    for block, content in blocks.items():
        if content is not None and not isinstance(content, dict):
            raise ConfigError(f"`{block}:` of {name} must be a mapping of changes, got {type(content).__name__}")
    if scale in blocks and values.get("scale") != scale:
        changes_of_scale = blocks[scale]
        if changes_of_scale is None:
            raise ConfigError(f"{name} has no block `{scale}:`, so it cannot be run at scale={scale}")
        values = _layered(values, changes_of_scale)
    tune = next((value for path, value in reversed(changes) if path == ["model", "tune"]), None)
    if tune == "all" and blocks[FINETUNED]:
        values = _layered(values, blocks[FINETUNED])
    return with_overrides(values, overrides)


def copied_values(source: str | Path, overrides: Sequence[str], name: str) -> dict[str, Any]:
    """A recipe as a file of one's own: all values filled in, under a name of its own.

    It stands for no row of the paper any more, since it will be changed. Blocks of other scales stay, without what the
    overrides decide; those of the scale that was asked for are merged in, and none is left.
    """
    recipe = load_recipe(source, overrides)
    values = {"name": name} | recipe.model_dump(mode="json", exclude={"name", "about", "paper"})
    if recipe.scale != "full":
        return values
    raw = _read(source)
    for block in BLOCKS:
        if isinstance(raw.get(block), dict):
            values[block] = raw[block]
            for path, _ in map(_parse_override, overrides):
                _drop(values[block], path)
    return values


def _drop(values: Any, path: list[str]) -> None:
    """Takes a key out, in place, if it is there."""
    *above, last = path
    for part in above:
        values = values.get(part) if isinstance(values, dict) else None
    if isinstance(values, dict):
        values.pop(last, None)


def with_overrides(values: dict[str, Any], overrides: Sequence[str], sections: Sequence[str] = ()) -> dict[str, Any]:
    """Values with `a.b.c=value` applied, in place; only those of some sections, if these are named."""
    changes = [each for each in map(_parse_override, overrides) if not sections or each[0][0] in sections]
    for path, value in changes:
        if path[1:] == ["kind"] and path[0] in GROUPS:  # other sections have a `kind`, too, and keys for all of them
            _leave_behind(values, path[0], value)
    for path, value in changes:
        _assign(values, path, value)
    return values


def _leave_behind(values: dict[str, Any], section: str, kind: Any) -> None:
    """Takes out of a section, in place, what only another kind has than the one it is about to name."""
    there = values.get(section)
    if not isinstance(there, dict) or there.get("kind") == kind or not isinstance(kind, str):
        return
    try:
        known = keys_of(section, kind)
    except ConfigError:
        return  # `validate` says that there is no such kind
    values[section] = {key: value for key, value in there.items() if key in known}
    if section == "data":  # each kind of data has views of its own
        values.pop("views", None)


def _layered(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` over `below`, section by section."""
    below = dict(below)
    for section in GROUPS:
        named = above.get(section)
        if isinstance(named, dict) and "kind" in named:
            _leave_behind(below, section, named["kind"])
    return _merge(below, above)


def load_run_recipe(path: Path) -> Recipe:
    """The recipe that a run was started with, also by an older rince."""
    return read_run_recipe(_file_text(path), str(path))


def read_run_recipe(text: str, source: str) -> Recipe:
    """The same from its text; `source` names it in errors."""
    return of_its_row(validate(upgraded(_parse(text, source)), source))


def validate(values: dict[str, Any], source: str) -> Recipe:
    """A recipe from plain values; `source` names them in errors."""
    try:
        made = recipe_class(kinds_of(values))
    except ConfigError as error:
        raise ConfigError(_mistakes(source, str(error).splitlines())) from None
    try:
        return made.model_validate(values)
    except ValidationError as error:
        lines = [_explain(problem, made) for problem in error.errors(include_url=False)]
        raise ConfigError(_mistakes(source, lines)) from None


def _mistakes(source: str, lines: list[str]) -> str:
    count = "1 mistake" if len(lines) == 1 else f"{len(lines)} mistakes"
    return f"{source} has {count}:\n" + "\n".join(f"  {line}" for line in lines)


def _read(source: str | Path) -> dict[str, Any]:
    path = Path(source)
    is_file = path.suffix in (".yaml", ".yml") or os.path.isfile(path)  # no file either where no name can be so long
    values = _parse(_file_text(path) if is_file else recipe_text(str(source)), str(source))
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str):
        raise ConfigError(f"base of {source} must be the name or file of a recipe, got {base!r}")
    if is_file and os.path.isfile(path.parent / base):
        below = _parse(_file_text(path.parent / base), base)
    elif not is_file and base.startswith("_"):  # a base that ships beside the recipe, and is none itself
        folder = files("rince") / "recipes" / "configs" / str(source).partition("/")[0]
        below = _parse((folder / f"{base}.yaml").read_text(), base)
    else:
        below = _read(base)
    if "base" in below:
        raise ConfigError(f"{base}, the base of {source}, has a base itself; only one level is allowed")
    return _layered(below, values)


def _file_text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the recipe {path}: {error}") from None


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        values = load_yaml(text)
    except NotPlainYamlError as error:
        raise ConfigError(f"{source} is not valid YAML: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{source} must be a mapping such as `data: …`, got {type(values).__name__}")
    return values


def _parse_override(text: str) -> tuple[list[str], Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"an override looks like train.epochs=5, got {text!r}")
    try:
        return key.strip().split("."), load_yaml(value)
    except NotPlainYamlError as error:
        raise ConfigError(f"the value of {key!r} is not valid YAML: {shown(value)}; {error}") from None


def _assign(values: dict[str, Any], path: list[str], value: Any) -> None:
    node: Any = values
    for i, part in enumerate(path):
        last = i + 1 == len(path)
        if isinstance(node, list) and part.isdigit() and int(part) < len(node):
            if last:
                node[int(part)] = value
            else:
                node = node[int(part)]
        elif isinstance(node, dict):
            if last:
                node[part] = value
            else:
                node = node.setdefault(part, {})
        else:
            raise ConfigError(f"override {'.'.join(path)}: there is nothing called {part!r} in {'.'.join(path[:i])}")


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` over `below`: mappings are merged, anything else replaces."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _explain(problem: Any, recipe: type[Recipe]) -> str:
    path = ".".join(str(part) for part in problem["loc"]) or "recipe"
    if problem["type"] == "extra_forbidden":
        known = _known_keys(problem["loc"][:-1], recipe)
        close = difflib.get_close_matches(str(problem["loc"][-1]), known, n=1)
        return f"{path}: unknown key; " + (f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}")
    if problem["type"] == "missing":
        return f"{path}: is missing"
    message = problem["msg"].removeprefix("Value error, ")
    if isinstance(problem["input"], dict):  # about several settings, which the message names
        return f"{path}: {message}"
    return f"{path}: {message}; got {shown(problem['input'], 200)}"


def _known_keys(location: tuple[Any, ...], recipe: type[Recipe]) -> list[str]:
    model: Any = recipe
    for part in location:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        candidates = [annotation, *get_args(annotation), *(a for arg in get_args(annotation) for a in get_args(arg))]
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), model)
    return sorted(model.model_fields)
