"""Recipes: a YAML file, one level of `base:`, `a.b.c=value` overrides; in the end one frozen, validated object.

A recipe file may hold a block `reduced:`, merged over the rest when `scale` is `reduced`. Nothing in a recipe is
executed, interpolated or imported. Unknown keys are refused with a suggestion, and all mistakes are told at once.
"""

from __future__ import annotations

import difflib
import itertools
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from rince.errors import ConfigError

Fraction = Annotated[float, Field(ge=0, le=1)]
Scale = Literal["full", "reduced"]


class _Section(BaseModel):
    # Lax mode on purpose: PyYAML reads `1e-4` as text, and pydantic turns it into the number it is.
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


def _falling(values: list[float]) -> list[float]:
    if any(a <= b for a, b in itertools.pairwise(values)):
        raise ValueError(f"must fall from rank to rank, got {values}")
    return values


def _rising(values: list[float]) -> list[float]:
    if any(a >= b for a, b in itertools.pairwise(values)):
        raise ValueError(f"must grow from rank to rank, got {values}")
    return values


class Data(_Section):
    """Where images come from, and how their classes are related."""

    source: str = Field(
        description="embedded data (fashion), a local folder or parquet, or a hub name (uoft-cs/cifar100)"
    )
    train_split: str = "train"
    test_split: str = "test"
    image_column: str | None = Field(None, description="found by itself where obvious")
    label_column: str | None = Field(None, description="found by itself where obvious")
    superclass_column: str | None = Field(None, description="needed for taxonomy: column")
    taxonomy: str = Field(
        "none", description="none, column, folders, a shipped name (cifar100, fashion), or a YAML or CSV file"
    )
    classes: str | None = Field(
        None, description="take these classes only: a shipped list (imagenet100, …) or a text file, one name a line"
    )
    limit: PositiveInt | None = Field(None, description="use a balanced part of this many training images")
    workers: Annotated[int, Field(ge=0)] = Field(
        2, description="processes that decode images too large to hold in memory"
    )


class ViewSettings(_Section):
    """What a view draws."""

    size: PositiveInt = 32
    crop_scale: tuple[Fraction, Fraction] = (0.2, 1.0)
    crop_ratio: tuple[PositiveFloat, PositiveFloat] = (3 / 4, 4 / 3)
    flip: Fraction = 0.5
    jitter: tuple[Fraction, Fraction, Fraction, Annotated[float, Field(ge=0, le=0.5)]] | None = Field(
        (0.4, 0.4, 0.4, 0.1), description="brightness, contrast, saturation, hue; null for none"
    )
    jitter_probability: Fraction = 0.8
    grayscale: Fraction = 0.2
    mean: list[float] = [0.485, 0.456, 0.406]
    std: list[PositiveFloat] = [0.229, 0.224, 0.225]


class Clips(_Section):
    """Clips of videos. A recipe with this section trains on videos, one without on images."""

    layout: Literal["auto", "folders", "manifest", "kinetics400", "ucf101", "hmdb51", "kth"] = Field(
        "auto", description="how files and splits are named; auto looks"
    )
    splits: str | None = Field(None, description="folder of the official split files of UCF101 or HMDB51, if elsewhere")
    split_number: Literal[1, 2, 3] = Field(1, description="which of the official splits of UCF101 or HMDB51")
    frames: Annotated[int, Field(ge=2)] = 16
    stride: PositiveInt = Field(3, description="every so many frames one is taken")
    gap: Annotated[int, Field(ge=0)] = Field(48, description="frames between the video positive and the others")
    short: Literal["leave-out", "shrink-stride", "drop-rank"] = Field(
        "leave-out", description="what becomes of a video too short for query, shot and video positive"
    )
    short_side: PositiveInt = Field(160, description="height or width, the smaller, that frames are decoded to")
    test_clips: PositiveInt = Field(10, description="clips of a test video whose outputs are averaged")


class Model(_Section):
    """The encoder: a ResNet, 3D for clips, and a head of two layers."""

    depth: Literal[10, 18, 34, 50] = 50
    width: PositiveInt = 64
    stem: Literal["small", "small-stride2", "imagenet"] = "small"
    norm: Literal["batch", "group"] = "batch"
    head_hidden: PositiveInt | None = Field(None, description="null: as wide as the features")
    dim: PositiveInt = 128
    channels_last: bool = True
    compile: bool = Field(False, description="torch.compile the encoders; minutes of start for a faster run")
    start_from: str | None = Field(None, description="folder of a run whose encoder, without its head, is the start")


class TreeRanks(_Section):
    """Ranks from the taxonomy of the data."""

    kind: Literal["tree", "classes", "parents", "instances"] = Field(
        "tree",
        description="tree: every level of the taxonomy a rank; classes: same class only; parents: same parent class as "
        "rank 1; instances: no labels",
    )
    flipped: Fraction = Field(
        0.0, description="share of the pairs of classes whose relation is turned round, to study noise; of kind tree"
    )

    @model_validator(mode="after")
    def _only_a_tree_is_flipped(self) -> TreeRanks:
        if self.flipped and self.kind != "tree":
            raise ValueError(f"flipped is about the ranks of kind tree, got kind {self.kind}")
        return self


Falling = Annotated[list[float], Field(min_length=1), AfterValidator(_falling)]
Rising = Annotated[list[PositiveFloat], Field(min_length=1), AfterValidator(_rising)]
RisingCounts = Annotated[list[PositiveInt], Field(min_length=1), AfterValidator(_rising)]
FallingCounts = Annotated[list[PositiveInt], Field(min_length=1), AfterValidator(_falling)]


class TextRanks(_Section):
    """Ranks from how similar the names of classes are to a text model."""

    kind: Literal["text"]
    thresholds: Falling = Field([0.45], description="smallest similarity of ranks 2, 3, …; the paper's best is 0.45")
    model: str | None = Field(None, description="a sentence-transformers model; null for the installed small one")


class WordNetRanks(_Section):
    """Ranks from the way between classes in WordNet, up to a common ancestor and down."""

    kind: Literal["wordnet"]
    thresholds: RisingCounts = Field([4], description="longest way of ranks 2, 3, …, in edges; siblings are 2 apart")
    file: str | None = Field(None, description=".csv with child, parent; null for ImageNet's part of WordNet")


class SimilarityRanks(_Section):
    """Ranks from a matrix of similarities between classes."""

    kind: Literal["similarity"]
    file: str = Field(description=".npy, .npz in label order, or .csv with the names of the classes")
    thresholds: Falling


class EmbeddingRanks(_Section):
    """Ranks from how near classes, or samples, are in an embedding of your own."""

    kind: Literal["embedding"]
    file: str = Field(description=".npy or .npz with a vector per class, or per training image")
    per: Literal["class", "sample"] = "class"
    thresholds: Falling | None = Field(None, description="smallest cosine of ranks 2, 3, …")
    nearest: RisingCounts | None = Field(None, description="or: how many neighbours ranks 2, 3, … reach up to")

    @model_validator(mode="after")
    def _one_of_two(self) -> EmbeddingRanks:
        if (self.thresholds is None) == (self.nearest is None):
            raise ValueError("give either thresholds or nearest")
        return self


class ClusterRanks(_Section):
    """Ranks from clusters of classes in an embedding of your own, at several granularities."""

    kind: Literal["clusters"]
    file: str = Field(description=".npy or .npz with a vector per class")
    counts: FallingCounts = Field(description="clusters of the classes, then clusters of those, …")
    method: Literal["kmeans", "agglomerative"] = "agglomerative"


class PositionRanks(_Section):
    """Ranks from the distance between samples in columns of metadata: camera positions, times, geography."""

    kind: Literal["position"]
    file: str = Field(description=".csv with a header and a row per training image")
    columns: Annotated[list[str], Field(min_length=1)]
    thresholds: Rising = Field(description="largest distance of ranks 2, 3, …")


ClipRank = Annotated[int, Field(ge=-1, le=127)]


class ClipRanks(_Section):
    """Ranks of the clips of a query's own video; other videos are negatives, past clips of its own take no part."""

    kind: Literal["clips"]
    frame: ClipRank = Field(1, description="the query's frames under another view; 0 is a negative, -1 takes no part")
    shot: ClipRank = Field(-1, description="the frames right before or after the query")
    video: ClipRank = Field(-1, description="frames from another part of the video")

    @property
    def own(self) -> tuple[int, int, int]:
        """Ranks of frame, shot and video."""
        return self.frame, self.shot, self.video

    @model_validator(mode="after")
    def _no_gap(self) -> ClipRanks:
        positives = {rank for rank in self.own if rank > 0}
        if positives != set(range(1, len(positives) + 1)) or not positives:
            raise ValueError(f"the ranks of frame, shot and video must count from 1 without a gap, got {self.own}")
        return self


Ranks = Annotated[
    TreeRanks | TextRanks | WordNetRanks | SimilarityRanks | EmbeddingRanks | ClusterRanks | PositionRanks | ClipRanks,
    Field(discriminator="kind"),
]


class Term(_Section):
    """One rank of the loss."""

    temperature: PositiveFloat
    positives: Literal["in", "out"] = "in"
    includes_closer: bool = False


class Loss(_Section):
    """Ranked InfoNCE."""

    terms: Annotated[list[Term], Field(min_length=1)]
    over_positives: Literal["mean", "sum", "pooled"] = "mean"
    over_ranks: Literal["sum", "mean"] = "sum"
    allow_any_order: bool = False

    @model_validator(mode="after")
    def _temperatures_do_not_fall(self) -> Loss:
        temperatures = [term.temperature for term in self.terms]
        if temperatures != sorted(temperatures) and not self.allow_any_order:
            raise ValueError(
                f"temperatures must not fall as the rank grows, got {temperatures}; or set allow_any_order"
            )
        return self


class ContrastMethod(_Section):
    """Momentum contrast with the ranked loss: RINCE, SCL, InfoNCE."""

    kind: Literal["contrast"] = "contrast"


class TripletMethod(_Section):
    """Momentum contrast with a triplet loss whose margin depends on the rank."""

    kind: Literal["triplet"]
    margins: Annotated[list[PositiveFloat], Field(min_length=1)] = [0.5, 1.0]


class CrossEntropyMethod(_Section):
    """Cross-entropy on the classes."""

    kind: Literal["cross-entropy"]
    smoothing: Fraction = Field(0.0, description="α: mass that the other classes of the superclass share")
    superclass_weight: Fraction = Field(0.0, description="λ of a second head, for superclasses; 0 for one head")
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="share of a feature that is hidden at a step")


class ContrastTwoHeadsMethod(_Section):
    """Momentum contrast on classes with one head and on superclasses with another."""

    kind: Literal["contrast-two-heads"]
    superclass_weight: Fraction = Field(0.3, description="λ of the head for superclasses")


class HierarchicalTripletMethod(_Section):
    """Triplets with margins by hierarchy, in batches where close classes meet."""

    kind: Literal["hierarchical-triplet"]
    anchors: PositiveInt = Field(30, description="l′: classes drawn per batch, one sample each")
    near: PositiveInt = Field(10, description="c: samples from a class close to each of them")
    random: Annotated[int, Field(ge=0)] = Field(182, description="t: samples from all")
    slack: Annotated[float, Field(ge=0)] = Field(0.1, description="β, part of every margin")


class FastAPMethod(_Section):
    """Average precision by soft histograms, in batches of few superclasses."""

    kind: Literal["fast-ap"]
    bins: PositiveInt = 5
    categories: PositiveInt = Field(2, description="superclasses that make a batch")


Method = Annotated[
    ContrastMethod
    | TripletMethod
    | CrossEntropyMethod
    | ContrastTwoHeadsMethod
    | HierarchicalTripletMethod
    | FastAPMethod,
    Field(discriminator="kind"),
]


class Bank(_Section):
    """The memory bank."""

    size: PositiveInt = 4096
    start: Literal["empty", "random"] = "empty"


class Twin(_Section):
    """The momentum twin."""

    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.99
    buffers: Literal["own", "copy"] = "own"


class Optimizer(_Section):
    """How weights are updated."""

    kind: Literal["sgd", "adam"] = "sgd"
    lr: PositiveFloat = 0.5
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="of sgd")
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4


class Schedule(_Section):
    """The learning rate over time: linear warm-up by step, then cosine by epoch; or down when a loss stops falling."""

    kind: Literal["cosine", "constant", "plateau"] = "cosine"
    warmup_epochs: Annotated[int, Field(ge=0)] = 0
    warmup_from: Annotated[float, Field(ge=0)] = 0.01
    floor: Annotated[float, Field(ge=0, le=1)] = Field(1e-3, description="end of the cosine, as a share of lr")
    held_out: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.05, description="share of the training samples that are not trained on: plateau looks at their loss"
    )
    patience: Annotated[int, Field(ge=0)] = Field(10, description="epochs without a lower loss before a plateau counts")
    factor: Annotated[float, Field(gt=0, lt=1)] = Field(0.1, description="that a plateau multiplies the rate by")


class Training(_Section):
    """How long, and in which portions."""

    epochs: PositiveInt = 1000
    batch: PositiveInt = 512
    accumulate: PositiveInt = Field(1, description="split every batch into this many parts, to save memory")
    keep_last_batch: bool = Field(True, description="also train on the smaller last batch of an epoch")
    max_steps: PositiveInt | None = Field(None, description="stop early, for a trial")
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    batch_norm: Literal["per-process", "sync", "shuffled"] = Field(
        "per-process", description="statistics with several processes; sync needs GPUs, shuffled is MoCo's"
    )


class Save(_Section):
    """When checkpoints are written, whichever comes first; one is always written at the end."""

    every_steps: PositiveInt = 1000
    every_minutes: PositiveFloat = 10


class Log(_Section):
    """What is written down."""

    every_steps: PositiveInt = 10
    logger: Literal["none", "tensorboard", "csv", "wandb"] = Field(
        "tensorboard", description="where metrics go besides metrics.jsonl; wandb needs its package"
    )


class Paper(_Section):
    """Which row of which table of the paper this recipe stands for."""

    table: str
    row: str


class Recipe(_Section):
    """Everything one training run depends on."""

    name: str
    about: str = ""
    scale: Scale = "full"
    paper: Paper | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 123
    data: Data
    clips: Clips | None = Field(None, description="present: data.source holds videos")
    views: ViewSettings = ViewSettings()
    model: Model = Model()
    ranks: Ranks = TreeRanks()
    method: Method = ContrastMethod()
    loss: Loss | None = Field(None, description="of the methods contrast and contrast-two-heads")
    bank: Bank = Bank()
    twin: Twin = Twin()
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    train: Training = Training()
    save: Save = Save()
    log: Log = Log()

    @property
    def terms(self) -> tuple[Term, ...]:
        """Of the ranked loss; none for methods that have another."""
        return tuple(self.loss.terms) if self.loss else ()

    @property
    def has_bank(self) -> bool:
        """Whether the method keeps past keys."""
        return self.method.kind in ("contrast", "triplet", "contrast-two-heads")

    @property
    def in_batch(self) -> bool:
        """Whether the method compares all samples of a batch, so that the batch cannot be split."""
        return self.method.kind in ("hierarchical-triplet", "fast-ap")

    @property
    def needs_superclasses(self) -> bool:
        """Whether the method is about superclasses, whatever the ranks are."""
        if isinstance(self.method, CrossEntropyMethod):
            return self.method.smoothing > 0 or self.method.superclass_weight > 0
        return self.in_batch or self.method.kind == "contrast-two-heads"

    @model_validator(mode="after")
    def _loss_fits_the_method(self) -> Recipe:
        wants = self.method.kind in ("contrast", "contrast-two-heads")
        if wants and self.loss is None:
            raise ValueError(f"method.kind={self.method.kind} needs loss.terms, one for every rank")
        if not wants and self.loss is not None:
            raise ValueError(f"method.kind={self.method.kind} has a loss of its own; leave out `loss`")
        if self.method.kind == "contrast-two-heads" and len(self.terms) != 1:
            raise ValueError(f"method.kind=contrast-two-heads has one term for both heads, got {len(self.terms)}")
        if self.in_batch and self.train.accumulate > 1:
            raise ValueError(f"method.kind={self.method.kind} compares all samples of a batch; use train.accumulate=1")
        if self.method.kind == "hierarchical-triplet" and self.ranks.kind != "tree":
            raise ValueError(f"method.kind=hierarchical-triplet needs ranks.kind=tree, got {self.ranks.kind}")
        return self

    @model_validator(mode="after")
    def _videos_fit(self) -> Recipe:
        if (self.ranks.kind == "clips") != (self.clips is not None and self.method.kind == "contrast"):
            raise ValueError("ranks.kind=clips, a section `clips` and method.kind=contrast go together")
        if self.clips is not None and self.method.kind not in ("contrast", "cross-entropy"):
            raise ValueError(f"videos are trained on by contrast or cross-entropy, got method.kind={self.method.kind}")
        if self.schedule.kind == "plateau" and self.method.kind not in ("contrast", "cross-entropy"):
            raise ValueError(
                f"schedule.kind=plateau needs a validation loss, which method.kind={self.method.kind} does not have"
            )
        return self

    @model_validator(mode="after")
    def _batch_fits(self) -> Recipe:
        method = self.method
        if isinstance(method, HierarchicalTripletMethod):
            wanted = method.anchors * (1 + method.near) + method.random
            if self.train.batch != wanted:
                raise ValueError(
                    f"train.batch must be anchors · (1 + near) + random of the method, {wanted}; got {self.train.batch}"
                )
        if self.has_bank and self.train.batch > self.bank.size:
            raise ValueError(f"train.batch ({self.train.batch}) must not exceed bank.size ({self.bank.size})")
        if self.train.batch % self.train.accumulate:
            raise ValueError(f"train.accumulate ({self.train.accumulate}) must divide train.batch ({self.train.batch})")
        if self.schedule.kind == "cosine" and self.schedule.warmup_epochs >= self.train.epochs:
            raise ValueError(
                f"schedule.warmup_epochs ({self.schedule.warmup_epochs}) must be below train.epochs "
                f"({self.train.epochs}); lower it, it may be 0"
            )
        if self.train.accumulate > 1 and self.train.batch_norm == "shuffled":
            raise ValueError("train.batch_norm=shuffled shuffles whole batches; use train.accumulate=1")
        return self

    def to_yaml(self) -> str:
        """The recipe as a file that `load_recipe` reads back to an equal one."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=100)


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


def load_recipe(source: str | Path, overrides: list[str] | None = None) -> Recipe:
    """A recipe from its name or file, with `a.b.c=value` overrides applied.

    Raises:
        ConfigError: with every mistake at once, each with its path.
    """
    values = _read(source)
    changes = [_parse_override(text) for text in overrides or []]
    scale = next((value for path, value in reversed(changes) if path == ["scale"]), values.get("scale", "full"))
    if scale not in get_args(Scale):
        raise ConfigError(f"scale must be full or reduced, got {scale!r}")
    reduced = values.pop("reduced", None)
    if reduced is not None and not isinstance(reduced, dict):
        raise ConfigError(f"`reduced:` of {source} must be a mapping of changes, got {type(reduced).__name__}")
    if scale == "reduced" and reduced is not None and values.get("scale") != "reduced":
        values = _merge(values, reduced)
    elif scale == "reduced" and reduced is None and values.get("scale") != "reduced":
        raise ConfigError(f"{source} has no block `reduced:`, so it cannot be run at scale=reduced")
    for path, value in changes:
        _assign(values, path, value)
    return validate(values, str(source))


def validate(values: dict[str, Any], source: str) -> Recipe:
    """A recipe from plain values; `source` names them in errors."""
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        lines = [_explain(problem) for problem in error.errors(include_url=False)]
        count = "1 mistake" if len(lines) == 1 else f"{len(lines)} mistakes"
        raise ConfigError(f"{source} has {count}:\n" + "\n".join(f"  {line}" for line in lines)) from None


def _read(source: str | Path) -> dict[str, Any]:
    path = Path(source)
    is_file = path.suffix in (".yaml", ".yml") or path.is_file()
    values = _parse(_file_text(path) if is_file else recipe_text(str(source)), str(source))
    base = values.pop("base", None)
    if base is None:
        return values
    if is_file and (path.parent / str(base)).is_file():
        below = _parse(_file_text(path.parent / str(base)), str(base))
    elif not is_file and str(base).startswith("_"):  # a base that ships beside the recipe, and is none itself
        folder = files("rince") / "recipes" / "configs" / str(source).partition("/")[0]
        below = _parse((folder / f"{base}.yaml").read_text(), str(base))
    else:
        below = _read(str(base))
    if "base" in below:
        raise ConfigError(f"{base}, the base of {source}, has a base itself; only one level is allowed")
    return _merge(below, values)


def _file_text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the recipe {path}: {error}") from None


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{source} must be a mapping such as `data: …`, got {type(values).__name__}")
    return values


def _parse_override(text: str) -> tuple[list[str], Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"an override looks like train.epochs=5, got {text!r}")
    try:
        return key.strip().split("."), yaml.safe_load(value)
    except yaml.YAMLError:
        raise ConfigError(f"the value of {key!r} is not valid YAML: {value!r}") from None


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


def _explain(problem: Any) -> str:
    path = ".".join(str(part) for part in problem["loc"]) or "recipe"
    if problem["type"] == "extra_forbidden":
        known = _known_keys(problem["loc"][:-1])
        close = difflib.get_close_matches(str(problem["loc"][-1]), known, n=1)
        return f"{path}: unknown key; " + (f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}")
    if problem["type"] == "missing":
        return f"{path}: is missing"
    message = problem["msg"].removeprefix("Value error, ")
    if isinstance(problem["input"], dict):  # about several settings, which the message names
        return f"{path}: {message}"
    return f"{path}: {message}; got {problem['input']!r}"[:300]


def _known_keys(location: tuple[Any, ...]) -> list[str]:
    model: Any = Recipe
    for part in location:
        if isinstance(part, int):
            continue
        if part not in model.model_fields:  # the kind of a method or of ranks, which pydantic puts into the path
            kinds = (*get_args(get_args(Method)[0]), *get_args(get_args(Ranks)[0]))
            model = next(m for m in kinds if part in get_args(m.model_fields["kind"].annotation))
            continue
        annotation = model.model_fields[part].annotation
        candidates = [annotation, *get_args(annotation), *(a for arg in get_args(annotation) for a in get_args(arg))]
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), model)
    return sorted(model.model_fields)
