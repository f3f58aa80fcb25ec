"""The class of a recipe: `Recipe` with the keys of the kinds that it names."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any, ClassVar, NamedTuple, cast

from pydantic import Field, create_model

from rince.config.recipe import (
    BankSettings,
    DataSettings,
    LossSettings,
    ModelSettings,
    RankSettings,
    Recipe,
    TwinSettings,
)
from rince.config.section import Section
from rince.errors import ConfigError
from rince.registry import Group, part

GROUPS: dict[str, Group] = {"data": "sources", "model": "encoders", "ranks": "ranks", "method": "methods"}
DEFAULTS = {"data": "images", "ranks": "tree", "method": "contrast"}  # that of `model` depends on the data


class Kinds(NamedTuple):
    """The kinds a recipe names."""

    data: str
    model: str
    ranks: str
    method: str


def kinds_of(values: dict[str, Any]) -> Kinds:
    """What the values of a recipe name, and what is meant where they name nothing."""

    def kind(section: str, default: str) -> str:
        named = values.get(section)
        return str(named.get("kind", default)) if isinstance(named, dict) else default

    data = kind("data", DEFAULTS["data"])
    try:
        usual = settings_of_kind("data", data).encoder
    except ConfigError:
        usual = "resnet"  # `recipe_class` says what is wrong, with all else that is
    model = kind("model", usual)
    return Kinds(data, model, kind("ranks", DEFAULTS["ranks"]), kind("method", DEFAULTS["method"]))


@cache
def recipe_class(kinds: Kinds) -> type[Recipe]:
    """A class of recipes of these kinds.

    Raises:
        ConfigError: with every kind that nobody registers.
    """
    found: dict[str, Any] = {}
    problems = []
    for section, kind in kinds._asdict().items():
        try:
            found[section] = settings_of_kind(section, kind)
        except ConfigError as error:
            problems.append(f"{section}.kind: {error}")
    if problems:
        raise ConfigError("\n".join(problems))
    uses = found["method"].uses
    views = found["data"].view_settings
    fields: dict[str, Any] = {
        "data": (found["data"], ...),
        "views": (views, views()),
        "model": (found["model"], _default(found["model"])),
        "method": (found["method"], _default(found["method"])),
        "loss": (LossSettings | None, None),
        "bank": (BankSettings, BankSettings()) if "bank" in uses else (BankSettings | None, None),
        "twin": (TwinSettings, TwinSettings()) if "twin" in uses else (TwinSettings | None, None),
        "ranks": (found["ranks"], _default(found["ranks"])) if "ranks" in uses else (found["ranks"] | None, None),
    }
    return create_model("Recipe", __base__=Recipe, __module__=Recipe.__module__, **fields)


def keys_of(section: str, kind: str) -> set[str]:
    """The keys that a section has with this kind.

    Raises:
        ConfigError: if nobody registers the kind.
    """
    return set(settings_of_kind(section, kind).model_fields)


def _default(settings: type[Section]) -> Any:
    """Its settings if all have a default; else the section must be there."""
    required = [name for name, field in settings.model_fields.items() if field.is_required()]
    return ... if required else settings()


@cache
def settings_of_kind(section: str, kind: str) -> Any:
    """The class of settings of a part; a function of another package gets one, with its arguments in `options`."""
    found = part(GROUPS[section], kind)
    if isinstance(found, type) and issubclass(found, Section):
        return found
    bases: dict[str, Any] = {"data": CalledData, "model": CalledModel, "ranks": CalledRanks}
    fields: dict[str, Any] = {"kind": (str, kind)}
    made = cast("Any", create_model(f"{kind}Settings", __base__=bases[section], **fields))
    made.function = staticmethod(found)
    return made


class CalledData(DataSettings):
    """Samples from a function of another package: `(source, split, **options)` → a source."""

    function: ClassVar[Any]
    options: dict[str, Any] = Field(default_factory=dict, description="what the registered function is called with")

    def open(self, split: str, views: Any, *, own_keys: int | None = None) -> Any:  # noqa: ARG002 - of the interface
        """What the function gives for a split."""
        return _labelled(_called(self, self.source, split), self.kind)

    def find(self, place: str, views: Any) -> Any:  # noqa: ARG002 - likewise
        """What the function gives for the test split of another place."""
        return _labelled(_called(self, place, self.test_split), self.kind)


class CalledModel(ModelSettings):
    """A network from a function of another package: `(shape, **options)` → a module."""

    function: ClassVar[Any]
    options: dict[str, Any] = Field(default_factory=dict, description="what the registered function is called with")

    def build(self, shape: Any) -> Any:
        """What the function gives."""
        return _called(self, tuple(shape))


class CalledRanks(RankSettings):
    """Ranks from a function of another package: `(class names, **options)` → a source of ranks."""

    function: ClassVar[Any]
    options: dict[str, Any] = Field(default_factory=dict, description="what the registered function is called with")

    def build(self, given: Any) -> Any:
        """What the function gives."""
        return _called(self, given.class_names)


def _called(settings: Any, *arguments: Any) -> Any:
    """What the function of another package gives; options that it does not take are the recipe's mistake."""
    try:
        inspect.signature(settings.function).bind(*arguments, **settings.options)
    except TypeError as error:
        raise ConfigError(f"options of kind {settings.kind!r} do not fit what is registered: {error}") from None
    return settings.function(*arguments, **settings.options)


def _labelled(source: Any, kind: str) -> Any:
    if not hasattr(source, "labels") or not hasattr(source, "plain"):
        raise ConfigError(
            f"data.kind={kind} gave a {type(source).__name__}, which is no source; let its function return "
            "rince.sources.from_dataset(…), or an object with the methods of rince.sources.Source"
        )
    return source
