"""What a recipe says: its sections, each with its defaults, and what has to fit together."""

from __future__ import annotations

from typing import Annotated, Literal

import yaml
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from rince.config.ranks import Ranks, TreeRanks
from rince.config.section import Fraction, Section

Scale = Literal["full", "reduced"]


class Data(Section):
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
        2, description="threads that decode videos, and images too large to hold in memory"
    )


class ViewSettings(Section):
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
    mean: list[float] = Field([0.485, 0.456, 0.406])
    std: list[PositiveFloat] = Field([0.229, 0.224, 0.225])


class Clips(Section):
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


class Model(Section):
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


class Term(Section):
    """One rank of the loss."""

    temperature: PositiveFloat
    positives: Literal["in", "out"] = "in"
    includes_closer: bool = False


class Loss(Section):
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


class ContrastMethod(Section):
    """Momentum contrast with the ranked loss: RINCE, SCL, InfoNCE."""

    kind: Literal["contrast"] = "contrast"


class TripletMethod(Section):
    """Momentum contrast with a triplet loss whose margin depends on the rank."""

    kind: Literal["triplet"]
    margins: Annotated[list[PositiveFloat], Field(min_length=1)] = Field([0.5, 1.0])


class CrossEntropyMethod(Section):
    """Cross-entropy on the classes."""

    kind: Literal["cross-entropy"]
    smoothing: Fraction = Field(0.0, description="α: mass that the other classes of the superclass share")
    superclass_weight: Fraction = Field(0.0, description="λ of a second head, for superclasses; 0 for one head")
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="share of a feature that is hidden at a step")


class ContrastTwoHeadsMethod(Section):
    """Momentum contrast on classes with one head and on superclasses with another."""

    kind: Literal["contrast-two-heads"]
    superclass_weight: Fraction = Field(0.3, description="λ of the head for superclasses")


class HierarchicalTripletMethod(Section):
    """Triplets with margins by hierarchy, in batches where close classes meet."""

    kind: Literal["hierarchical-triplet"]
    anchors: PositiveInt = Field(30, description="l′: classes drawn per batch, one sample each")
    near: PositiveInt = Field(10, description="c: samples from a class close to each of them")
    random: Annotated[int, Field(ge=0)] = Field(182, description="t: samples from all")
    slack: Annotated[float, Field(ge=0)] = Field(0.1, description="β, part of every margin")


class FastAPMethod(Section):
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


class Bank(Section):
    """The memory bank."""

    size: PositiveInt = 4096
    start: Literal["empty", "random"] = "empty"


class Twin(Section):
    """The momentum twin."""

    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.99
    buffers: Literal["own", "copy"] = "own"


class Optimizer(Section):
    """How weights are updated."""

    kind: Literal["sgd", "adam"] = "sgd"
    lr: PositiveFloat = 0.5
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="of sgd")
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4


class Schedule(Section):
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


class Training(Section):
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


class Save(Section):
    """When checkpoints are written, whichever comes first; one is always written at the end."""

    every_steps: PositiveInt = 1000
    every_minutes: PositiveFloat = 10


class Log(Section):
    """What is written down."""

    every_steps: PositiveInt = 10
    logger: Literal["none", "tensorboard", "csv", "wandb"] = Field(
        "tensorboard", description="where metrics go besides metrics.jsonl; wandb needs its package"
    )


class Paper(Section):
    """Which row of which table of the paper this recipe stands for."""

    table: str
    row: str


class Recipe(Section):
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
