"""Every key of a recipe, out of the schema that recipes are checked by: `rince explain` and docs/keys.md."""

from __future__ import annotations

import difflib
import inspect
import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from rince.config.kinds import DEFAULTS, GROUPS, settings_of_kind
from rince.config.recipe import OPTIONAL, Recipe
from rince.config.section import Section
from rince.errors import ConfigError
from rince.registry import BUILT_IN, ONE_OF, registered

ITEM = "N"  # stands for the number of an item, from 0, in a key such as loss.terms.N.temperature
SCHEMA_NAMES = {"integer": "whole number", "number": "number", "string": "text", "object": "mapping"}
LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


class Key(NamedTuple):
    """A key of a recipe."""

    name: str
    """As in `name=value` behind `rince train RECIPE`."""
    values: str
    default: str
    """Empty if it has to be given."""
    about: str
    kinds: tuple[str, ...]
    """Of its section that have it so; empty if all have."""


@cache
def all_keys(*, ours_only: bool = False) -> tuple[Key, ...]:
    """Of all sections and kinds, in the order of a recipe.

    Args:
        ours_only: leave out the kinds that other installed packages bring.
    """
    found: list[Key] = []
    schema = Recipe.model_json_schema()
    for section, field in Recipe.model_fields.items():
        if section in GROUPS:
            found += _keys_of_kinds(section, _kinds(section, ours_only=ours_only))
        elif section == "views":
            kinds = {kind: settings.view_settings for kind, settings in _kinds("data", ours_only=ours_only).items()}
            found += _keys_of_kinds(section, kinds)
        else:
            found += _keys(section, schema["properties"][section], schema, required=field.is_required())
    return tuple(found)


def section_about(section: str) -> str:
    """What a section is, and which methods have it, in a line or two; empty for a key that is none."""
    schema = Recipe.model_json_schema()
    own = _resolved(schema["properties"][section], schema)
    text = "What training sees of a sample, by kind of data." if section == "views" else own.get("description", "")
    if section not in OPTIONAL:
        return text.partition("\n")[0] if "properties" in own or section == "views" else ""
    having = [kind for kind, settings in _kinds("method", ours_only=True).items() if section in settings.uses]
    return f"{text.partition(chr(10))[0]} Of the methods {', '.join(having)}."


def explain(name: str) -> str:
    """What a key, a section, the last part of a key, or a value that keys take is, for a person.

    Raises:
        ConfigError: if there is nothing of that name.
    """
    asked = re.sub(r"\.\d+(?=\.|$)", f".{ITEM}", name.partition("=")[0].strip())
    keys = all_keys()
    inside = [key for key in keys if key.name.startswith(f"{asked}.")]
    chosen = [key for key in keys if key.name == asked]
    if not chosen and not inside:  # perhaps its last part
        chosen = [key for key in keys if key.name.endswith(f".{asked}")]
    if chosen:
        return "\n\n".join(_told(key) for key in chosen)
    if inside:
        about = section_about(asked) if asked in Recipe.model_fields else ""
        return "\n".join([*([about, ""] if about else []), one_line_each(inside)])
    having = [key for key in keys if asked in re.findall(r"[\w-]+", key.values)]
    if having:
        return "\n\n".join([f"{asked} is a value of:", *map(_told, having)])
    names = [key.name for key in keys]
    close = difflib.get_close_matches(asked, names, n=3) or difflib.get_close_matches(
        asked, [each.rpartition(".")[2] for each in names], n=1
    )
    hint = f"did you mean {' or '.join(close)}?" if close else "`rince explain` lists all keys"
    raise ConfigError(f"no recipe has a key {name!r}; {hint}")


def one_line_each(keys: Sequence[Key]) -> str:
    """Keys and what they are."""
    widest = max(len(key.name) for key in keys)
    return "\n".join(f"{key.name:{widest}}  {key.about}{_of(key)}" for key in keys)


def reference_page() -> str:
    """All of it as a page of Markdown."""
    lines = [
        "# Every key of a recipe",
        "",
        "Made from the schema that recipes are checked by (`scripts/write_keys.py`). `rince explain KEY` prints the",
        "same, with the kinds that installed packages bring; `rince show RECIPE` prints a recipe with all its values.",
        "Any key can be changed behind `rince train RECIPE`: `train.epochs=50`, `loss.terms.1.temperature=0.3` (items",
        "count from 0).",
        "",
    ]
    for section, keys in _by_section(all_keys(ours_only=True)).items():
        lines += [f"## {section}", ""] if section else []
        about = section_about(section) if section else ""
        lines += [about, ""] if about else []
        lines += ["| key | values | default | |", "|---|---|---|---|"]
        for key in keys:
            default = f"`{key.default}`" if key.default else "must be given"
            lines.append(
                f"| `{key.name}` | {_cell(key.values)} | {_cell(default)} | {_cell(key.about)}{_cell(_of(key))} |"
            )
        lines.append("")
    return "\n".join(lines)


def _by_section(keys: Sequence[Key]) -> dict[str, list[Key]]:
    found: dict[str, list[Key]] = {"": [key for key in keys if "." not in key.name]}
    for key in keys:
        if "." in key.name:
            found.setdefault(key.name.partition(".")[0], []).append(key)
    return found


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _of(key: Key) -> str:
    return f" ({key.name.partition('.')[0].replace('views', 'data')}.kind {', '.join(key.kinds)})" if key.kinds else ""


def _told(key: Key) -> str:
    default = key.default or "none: it must be given"
    return f"{key.name}{_of(key)}\n  {key.about}\n  values   {key.values}\n  default  {default}"


def _kinds(section: str, *, ours_only: bool) -> dict[str, Any]:
    """Settings of every kind that a recipe can name."""
    group = GROUPS[section]
    names = [name for name in BUILT_IN[group] if name != "given"]
    if not ours_only:
        names = [each.name for each in registered(group)]
    return {name: settings_of_kind(section, name) for name in names}


def _keys_of_kinds(section: str, kinds: dict[str, type[Section]]) -> list[Key]:
    """Keys of a section by kind; one that all kinds have alike stands for all."""
    having: dict[Key, list[str]] = {}
    for kind, settings in kinds.items():
        schema = settings.model_json_schema()
        for name, value in schema.get("properties", {}).items():
            if name != "kind":
                required = name in schema.get("required", ())
                for key in _keys(f"{section}.{name}", value, schema, required=required):
                    having.setdefault(key, []).append(kind)
    keys = [key._replace(kinds=() if len(of) == len(kinds) else tuple(of)) for key, of in having.items()]
    keys.sort(key=lambda key: bool(key.kinds))  # what all have comes first
    if section not in GROUPS:
        return keys
    about = "; ".join(filter(None, (_of_kind(kind, settings) for kind, settings in kinds.items())))
    named = f"which {ONE_OF[GROUPS[section]]}" + (f". {about}" if about else "")
    return [Key(f"{section}.kind", _one_of(list(kinds)), DEFAULTS.get(section, "what fits the data"), named, ()), *keys]


def _of_kind(kind: str, settings: type[Section]) -> str:
    """What the settings of a kind say of it, if they say more than its name."""
    said = re.match(r"`\w+\.kind=[\w-]+`: (.*?)\.?(?:\n|$)", inspect.getdoc(settings) or "")
    return f"{kind}: {said[1]}" if said else ""


def _keys(name: str, value: dict[str, Any], schema: dict[str, Any], *, required: bool) -> Iterator[Key]:
    """A key, or those below it."""
    inner = [_resolved(each, schema) for each in _choices(value)]
    below = next((each for each in inner if "properties" in each), None)
    if below is not None:
        for sub, sub_value in below["properties"].items():
            yield from _keys(f"{name}.{sub}", sub_value, schema, required=sub in below.get("required", ()))
        return
    default = "" if required else _shown(value.get("default"))
    yield Key(name, " or ".join(_values(each, schema) for each in inner), default, value.get("description", ""), ())
    items = _resolved(inner[0].get("items", {}), schema)
    for sub, sub_value in items.get("properties", {}).items():
        yield from _keys(f"{name}.{ITEM}.{sub}", sub_value, schema, required=sub in items.get("required", ()))


def _shown(value: Any) -> str:
    return value if value and isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _choices(value: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = value.get("anyOf") or [value]
    return found


def _resolved(value: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    reference = value.get("$ref") or next((each["$ref"] for each in value.get("anyOf", ()) if "$ref" in each), None)
    return schema["$defs"][reference.rpartition("/")[2]] if reference else value


def _values(value: dict[str, Any], schema: dict[str, Any]) -> str:
    """What a key takes, in words."""
    value = _resolved(value, schema)
    if "enum" in value or "const" in value:
        return _one_of([str(each) for each in value.get("enum", [value.get("const")])])
    kind = value.get("type", "")
    if kind == "boolean":
        return "true or false"
    if kind == "null":
        return "null"
    if kind == "array":
        items = value.get("prefixItems")
        if items:
            return f"{len(items)} of: {_values(items[0], schema)}"
        of = _resolved(value.get("items", {}), schema)
        return "a list" if "properties" in of else f"list of: {_values(of, schema)}"
    limits = [f"{sign} {value[name]:g}" for name, sign in LIMITS.items() if name in value and abs(value[name]) < 2**62]
    return " ".join([SCHEMA_NAMES.get(kind, "anything"), *limits])


def _one_of(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
