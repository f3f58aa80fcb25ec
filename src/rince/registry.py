"""Parts by name: what a recipe may call `kind`, ours and those that other installed packages bring.

A part is named here by text and imported when a recipe first asks for it, so that no room needs to know the others and
a recipe can name only what is registered: nothing in it is imported or executed. Another package registers a source,
an encoder or a source of ranks by an entry point; `docs/extending.md` shows the ten lines.
"""

from __future__ import annotations

import difflib
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, NamedTuple

from rince.errors import ConfigError

Group = Literal["sources", "encoders", "ranks", "methods"]
BUILT_IN: dict[Group, dict[str, str]] = {
    "sources": {
        "images": "rince.sources.images:ImageData",
        "videos": "rince.sources.videos:VideoData",
        "vectors": "rince.sources.vectors:VectorData",
        "texts": "rince.sources.texts:TextData",
        "given": "rince.sources.given:GivenData",
    },
    "encoders": {
        "resnet": "rince.encoders.resnet:ResNetModel",
        "adapter": "rince.encoders.adapter:AdapterModel",
        "sentence-transformers": "rince.encoders.sentence_transformer:SentenceTransformerModel",
        "huggingface": "rince.encoders.huggingface:HuggingFaceModel",
        "efficientnet-lite": "rince.encoders.efficientnet_lite:EfficientNetLiteModel",
        "timm": "rince.encoders.timm:TimmModel",
        "frames": "rince.encoders.frames:FramesModel",
        "given": "rince.encoders.given:GivenModel",
    },
    "ranks": {
        "tree": "rince.hierarchy.from_taxonomy:TreeSettings",
        "classes": "rince.hierarchy.from_taxonomy:ClassesSettings",
        "parents": "rince.hierarchy.from_taxonomy:ParentsSettings",
        "instances": "rince.hierarchy.from_taxonomy:InstancesSettings",
        "text": "rince.hierarchy.from_similarity:TextSettings",
        "wordnet": "rince.hierarchy.from_similarity:WordNetSettings",
        "similarity": "rince.hierarchy.from_similarity:SimilaritySettings",
        "embedding": "rince.hierarchy.from_vectors:EmbeddingSettings",
        "clusters": "rince.hierarchy.from_vectors:ClustersSettings",
        "position": "rince.hierarchy.from_vectors:PositionSettings",
        "clips": "rince.hierarchy.from_clips:ClipsSettings",
        "given": "rince.hierarchy.given:GivenRanks",
    },
    "methods": {
        "contrast": "rince.methods.contrast:ContrastSettings",
        "in-batch": "rince.methods.in_batch:InBatchSettings",
        "in-batch-two-heads": "rince.methods.in_batch:InBatchTwoHeadsSettings",
        "contrast-two-heads": "rince.methods.two_heads:TwoHeadsSettings",
        "cross-entropy": "rince.methods.cross_entropy:CrossEntropySettings",
        "triplet": "rince.methods.triplet:TripletSettings",
        "hierarchical-triplet": "rince.methods.hierarchical_triplet:HierarchicalTripletSettings",
        "fast-ap": "rince.methods.fast_ap:FastAPSettings",
        "frozen": "rince.methods.frozen:FrozenSettings",
    },
}
ONE_OF: dict[Group, str] = {
    "sources": "source of samples",
    "encoders": "encoder",
    "ranks": "source of ranks",
    "methods": "method",
}


class Registered(NamedTuple):
    """A part that can be named."""

    name: str
    where: str
    """`rince`, or the package and version that brings it."""


@cache
def _brought(group: Group) -> dict[str, EntryPoint]:
    """Entry points of other packages; a name of ours cannot be taken. Methods grow inside the project."""
    if group == "methods":
        return {}
    return {point.name: point for point in entry_points(group=f"rince.{group}") if point.name not in BUILT_IN[group]}


def registered(group: Group) -> list[Registered]:
    """All parts of a group, ours first."""
    ours = [Registered(name, "rince") for name in BUILT_IN[group] if name != "given"]  # which only Python can give
    return ours + [
        Registered(name, f"{point.dist.name} {point.dist.version}" if point.dist else point.value)
        for name, point in sorted(_brought(group).items())
    ]


@cache
def part(group: Group, name: str) -> Any:
    """The part of this name: a class of settings that builds it, or a function that another package registered.

    Raises:
        ConfigError: if nobody registers the name, or the package that does cannot be imported.
    """
    if name in BUILT_IN[group]:
        module, _, attribute = BUILT_IN[group][name].partition(":")
        return getattr(import_module(module), attribute)
    point = _brought(group).get(name)
    if point is None:
        known = [each.name for each in registered(group)]
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}."
        more = (
            "" if group == "methods" else f" If a package of yours brings it (entry point rince.{group}), install it."
        )
        raise ConfigError(f"there is no {ONE_OF[group]} called {name!r}; {hint}{more}")
    try:
        return point.load()
    except Exception as error:  # whatever a package of others raises while it is imported
        raise ConfigError(
            f"the {ONE_OF[group]} {name!r} is registered as {point.value}, which cannot be loaded "
            f"({type(error).__name__}: {error}); mend or reinstall the package that brings it"
        ) from error
