"""What a recipe says: its sections, each with its defaults, and what has to fit together.

Five sections are those of a part that the recipe names by its `kind`: data, views, model, ranks, method. Their keys
stand with the part, in the room that builds it; here is what all kinds of them have in common.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from rince.config.plain_yaml import yaml_text
from rince.config.section import Section, in_words
from rince.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

Scale = Literal["full", "long", "reduced", "pretrained"]
FINETUNED = "finetuned"
BLOCKS = ("long", "reduced", "pretrained", FINETUNED)  # of a recipe file: what a scale changes, and model.tune=all
OPTIONAL = ("loss", "bank", "twin", "ranks")  # sections that a method has or has not


class PartSettings(Section):
    """A section that names a part by its `kind`."""

    brought_as: ClassVar[str] = ""
    """The argument of `rince.fit` and `rince.open_run` that gives the part, where no file can hold it."""


class DataSettings(PartSettings):
    """Where samples come from, and how their classes are related. A kind of data adds its own keys, and opens it."""

    view_settings: ClassVar[type[Section]] = Section
    """The section `views` of this kind: what a view of such a sample draws."""
    encoder: ClassVar[str] = "resnet"
    """The `model.kind` that is meant where a recipe names none."""
    input_name: ClassVar[str] = "samples"
    """What a batch of them is called as the input of an exported encoder."""
    own_keys: ClassVar[int] = 1
    """Up to how many keys of its own a sample can have."""
    whole_or_not: ClassVar[bool] = False
    """Whether one bad sample is an error of its whole split, so that training looks at the test split before it starts;
    of images and videos, those that cannot be read are left out when they are judged."""

    kind: str
    source: str = Field(description="where the samples lie")
    train_split: str = Field("train", description="name of the split that is trained on")
    test_split: str = Field("test", description="name of the split that is judged on")
    taxonomy: str = Field(
        "none", description="none, column, folders, a shipped name (cifar100, fashion), or a YAML or CSV file"
    )
    classes: str | None = Field(
        None, description="take these classes only: a shipped list (imagenet100, …) or a text file, one name a line"
    )
    limit: PositiveInt | None = Field(None, description="use a balanced part of this many training samples")
    validation: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="share of each class of the training samples, by hash of their names, that is not trained on; of "
        "samples in groups, whole groups",
    )
    batches: Literal["random", "ranked"] = Field(
        "random",
        description="ranked: every sample of a batch has another one of its class in it, and one of every rank",
    )
    per_class: Annotated[int, Field(ge=2)] = Field(
        2, description="of data.batches=ranked: how many samples of a class come together"
    )
    balance: Literal["none", "classes"] = Field(
        "none", description="classes: an epoch has as many samples of a small class as of a large one"
    )
    workers: Annotated[int, Field(ge=0)] = Field(
        2, description="threads that load what is not in memory; processes for transforms without a generator"
    )

    @abstractmethod
    def open(self, split: str, views: Any, *, own_keys: int | None = None) -> Any:
        """The labelled samples of a split, as a `rince.sources.Source`.

        Args:
            split: its name.
            views: the recipe's section `views`.
            own_keys: how many keys of its own a sample is trained with; None to judge, where every sample counts.
        """

    @abstractmethod
    def find(self, place: str, views: Any) -> Any:
        """All samples at a place a person names, whether they have labels or not, as a `rince.sources.Source`."""

    def given(self, samples: Sequence[str], views: Any) -> Any:  # noqa: ARG002 - of the interface
        """Samples that a person writes down, where they are words, as a `rince.sources.Source`."""
        raise ConfigError(
            f"data.kind={self.kind} has no samples that are words; give a file, a folder, or a source "
            "(rince.sources.from_dataset)"
        )

    def is_sample(self, place: str) -> bool:  # noqa: ARG002 - of the interface
        """Whether what a person names is no place, but a sample itself, which `find` gives then."""
        return False

    def input_facts(self, views: Any) -> dict[str, Any]:  # noqa: ARG002 - of the interface
        """What another program has to know to make what the encoder takes of a sample."""
        return {}

    def usual_shape(self, views: Any) -> tuple[int, ...]:  # noqa: ARG002 - of the interface
        """Of a sample, for runs made before checkpoints noted it."""
        raise ConfigError(f"the checkpoint of this run does not say what samples of data.kind={self.kind} look like")

    def outliers(self, place: str, views: Any, *, classes: str | None = None) -> Any:
        """Samples that only have to be of no known class; of all classes there, or of a list of them."""
        if classes is not None:
            raise ConfigError(f"outliers of data.kind={self.kind} cannot be chosen by class; leave out {classes!r}")
        return self.find(place, views)


class ModelSettings(PartSettings):
    """The encoder: a network of some kind, and a head of two layers."""

    kind: str
    head_hidden: PositiveInt | None = Field(
        None, description="width of the head's hidden layer; null: as wide as the features"
    )
    dim: PositiveInt = Field(128, description="length of an embedding, after the head")
    compile: bool = Field(False, description="torch.compile the encoders; minutes of start for a faster run")
    start_from: str | None = Field(
        None, description="a run, whose network without its head is the start; or a safetensors file of weights"
    )

    @property
    def told(self) -> str:
        """Its own settings in one line, for a person."""
        return in_words(self.model_dump(exclude=set(ModelSettings.model_fields) | self.idle))

    @property
    def idle(self) -> set[str]:
        """Settings that make no difference here, by what others say."""
        return set()

    @property
    def advice(self) -> str:
        """What a person might do better, if anything."""
        return ""

    @property
    def notes(self) -> list[str]:
        """What a run notes of where it starts from, besides its settings."""
        return []

    @property
    def identity(self) -> str:
        """Fingerprint of what it starts from and does not keep in a checkpoint; empty if that is nothing."""
        return ""

    @property
    def tries_steps(self) -> bool:
        """Whether a dry run makes a few steps to tell how long all take."""
        return True

    @property
    def starts_from_weights(self) -> bool:
        """Whether what `build` gives is pretrained, so that `optimizer.backbone_lr` is for it."""
        return self.start_from is not None

    def fit_views(self, views: Any) -> Any:
        """The section `views`, with what the network says of its input where the recipe says nothing."""
        return views

    def prepare(self, source: Any, views: Any, *, facts: dict[str, Any], seed: int) -> Any:  # noqa: ARG002
        """A source made into what is trained on, such as features of a frozen network; by default as it is.

        Args:
            source: of samples.
            views: the section of the recipe, filled in.
            facts: how testing makes what an encoder takes of a sample.
            seed: of the run.
        """
        return source

    def whole(self, encoder: Any) -> Any:
        """An encoder that takes samples, from one that takes what `prepare` makes of them; by default as it is."""
        return encoder

    @abstractmethod
    def build(self, shape: Sequence[int]) -> nn.Module:
        """The network without its head, as it starts, for samples of this shape."""


class RankSettings(PartSettings):
    """Where ranks come from."""

    needs_levels: ClassVar[bool] = False
    """Whether they come from the levels above the classes."""

    kind: str

    @property
    def own_ranks(self) -> tuple[int, ...]:
        """What each of a sample's own keys is to it: 1 for a second view; -1 for one that takes no part."""
        return (1,)

    @property
    def own_names(self) -> tuple[str, ...]:
        """What each of these keys is called in the log; nothing where there is one only, a second view."""
        return ()

    @property
    def about_own(self) -> str:
        """What a sample's own keys are, for a person; empty for a second view of rank 1."""
        return ""

    def similarity(self, class_names: Sequence[str]) -> Tensor | None:  # noqa: ARG002 - of the interface
        """`(classes, classes)`: what the ranks of classes were cut from; None if there is no such thing."""
        return None

    @abstractmethod
    def build(self, given: Any) -> Any:
        """The source of ranks, from a `rince.hierarchy.given.Ranked`: classes, paths, how many samples."""

    def check(self, recipe: Recipe) -> None:
        """Raises ValueError where the recipe does not fit."""


class MethodSettings(Section):
    """How samples become gradients. A method says what it has and wants; all else follows from that."""

    uses: ClassVar[frozenset[str]] = frozenset()
    """Which of the sections `loss`, `bank`, `twin` and `ranks` it has."""
    splits_batches: ClassVar[bool] = True
    """Whether a batch may be made in parts."""
    caches_batches: ClassVar[bool] = False
    """Whether its candidates have gradients, so that a batch in parts goes through the encoder twice."""
    makes_batches: ClassVar[bool] = False
    """Whether its batches are of a kind of its own, whatever `data.batches` says."""
    validates: ClassVar[bool] = False
    """Whether it has a loss of samples that are not trained on, which `schedule.kind=plateau` needs."""
    keys: ClassVar[bool] = True
    """Whether it compares a sample with other views of its own."""
    classifies: ClassVar[bool] = False
    """Whether its head is a classifier of the classes."""
    own_head: ClassVar[bool] = True
    """Whether the head that a user's encoder has will do."""
    trains: ClassVar[bool] = True
    """Whether there is a step at all."""

    kind: str

    @property
    def spans_processes(self) -> bool:
        """Whether several processes may share a batch: those methods that may split it, unless they say otherwise."""
        return self.splits_batches

    @property
    def needs_superclasses(self) -> bool:
        """Whether it is about superclasses, whatever the ranks are."""
        return False

    @property
    def rank_terms(self) -> tuple[str, int] | None:
        """Key and number of the settings it has one of for every rank; None if the loss has them, or nobody."""
        return None

    def check(self, recipe: Recipe) -> None:
        """Raises ValueError where the recipe does not fit."""

    @abstractmethod
    def head(self, inputs: int, model: ModelSettings, groups: Sequence[int]) -> nn.Module:
        """What it trains on top of features of length `inputs`; `groups`: numbers of classes, superclasses, …."""

    @abstractmethod
    def order(self, recipe: Recipe, labels: Tensor, groups: Sequence[Tensor]) -> Any:
        """Which samples make the batch of a step, as a `rince.sources.order.BatchOrder`."""

    @abstractmethod
    def build(self, recipe: Recipe, given: Any) -> Any:
        """The method, from a `rince.methods.method.Given`."""


class TermSettings(Section):
    """One rank of the loss."""

    temperature: PositiveFloat = Field(
        description="τ of this rank: the lower, the more the hardest candidates count; must not fall from rank to rank"
    )
    positives: Literal["in", "out"] = Field(
        "in", description="where the sum over positives stands: in the log, some close ones are enough; out: all count"
    )
    includes_closer: bool = Field(
        False,
        description="lower ranks count as positives of this term too; the authors' CIFAR code does so for rank 2, but "
        "leaves the own key out",
    )
    denominator: Literal["own", "all"] = Field(
        "own", description="which positives stand below the fraction of positives=out; own: each by itself; all: SupCon"
    )
    weight: Annotated[float, Field(ge=0)] = Field(1.0, description="of this term in the loss")

    @model_validator(mode="after")
    def _denominator_says_something(self) -> TermSettings:
        if self.denominator == "all" and self.positives == "in":
            raise ValueError("denominator=all is for positives=out; positives=in has all of them there anyway")
        return self


class LossSettings(Section):
    """Ranked InfoNCE."""

    terms: Annotated[list[TermSettings], Field(min_length=1)] = Field(
        description="one for each rank, rank 1 first; three or more at equal steps of temperature go on like this for "
        "as many ranks as there are"
    )
    over_positives: Literal["mean", "sum", "pooled"] = Field(
        "mean",
        description="of out terms: mean or sum over a query's positives, or one mean over all pairs of the batch",
    )
    over_ranks: Literal["sum", "mean"] = Field("sum", description="how the terms of the ranks become one loss")
    allow_any_order: bool = Field(False, description="whether temperatures may fall from rank to rank")

    @model_validator(mode="after")
    def _temperatures_do_not_fall(self) -> LossSettings:
        temperatures = [term.temperature for term in self.terms]
        if temperatures != sorted(temperatures) and not self.allow_any_order:
            raise ValueError(
                f"temperatures must not fall as the rank grows, got {temperatures}; or set allow_any_order"
            )
        return self

    def terms_for(self, ranks: int) -> list[TermSettings]:
        """One for each rank, as far as there are: three or more at equal steps of temperature are a rule, and go on."""
        temperatures = [term.temperature for term in self.terms]
        steps = {round(after - before, 9) for before, after in itertools.pairwise(temperatures)}
        alike = [term.model_copy(update={"temperature": 0.0}) for term in self.terms[-2:]]
        if len(temperatures) < 3 or len(steps) > 1 or alike[0] != alike[1]:
            return self.terms[:ranks]
        last, step = self.terms[-1], steps.pop()
        further = [round(last.temperature + step * more, 9) for more in range(1, ranks - len(temperatures) + 1)]
        return [*self.terms[:ranks], *(last.model_copy(update={"temperature": each}) for each in further)]


class BankSettings(Section):
    """The memory bank."""

    size: PositiveInt = Field(4096, description="keys that it holds; as many a query is compared with")
    start: Literal["empty", "random"] = Field(
        "empty", description="what it holds at first: nothing, or random vectors, negatives for everyone"
    )


class TwinSettings(Section):
    """The momentum twin."""

    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.99, description="share of its weights that it keeps at a step; the rest is the encoder's"
    )
    buffers: Literal["own", "copy"] = Field(
        "own", description="whether its batch statistics are its own, or copied from the encoder"
    )


class OptimizerSettings(Section):
    """How weights are updated."""

    kind: Literal["sgd", "adam", "adamw"] = Field("sgd", description="which optimizer")
    lr: PositiveFloat = Field(0.5, description="learning rate after the warm-up, at its highest")
    backbone_lr: PositiveFloat | None = Field(
        None, description="rate of a network that starts from weights; its head keeps lr. null: lr for both"
    )
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.9, description="of sgd: share of the last step that is kept"
    )
    weight_decay: Annotated[float, Field(ge=0)] = Field(
        1e-4, description="share of a weight taken away at a step, times lr"
    )


class ScheduleSettings(Section):
    """The learning rate over time: linear warm-up by step, then a cosine; or down when a loss stops falling."""

    kind: Literal["cosine", "cosine-by-step", "constant", "plateau"] = Field(
        "cosine",
        description="cosine: set once per epoch, as the paper does, but by step in a run of one or two, which would be "
        "at its floor; cosine-by-step: at every step",
    )
    warmup_epochs: Annotated[int | float, Field(ge=0)] = Field(
        0, description="epochs, or a part of one, in which the rate grows to lr, by step"
    )
    warmup_from: Annotated[float, Field(ge=0)] = Field(0.01, description="rate of the first step of a warm-up")
    floor: Annotated[float, Field(ge=0, le=1)] = Field(
        1e-3, description="end of the cosine, and the lowest that plateaus go, as a share of lr"
    )
    patience: Annotated[int, Field(ge=0)] = Field(
        10, description="epochs without a lower loss of the validation samples before a plateau counts"
    )
    factor: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.1, description="that a plateau multiplies the rate by; it never falls below floor · lr"
    )


class TrainSettings(Section):
    """How long, and in which portions."""

    epochs: PositiveInt = Field(1000, description="passes over the training samples")
    batch: PositiveInt = Field(512, description="samples of a step, of all processes together")
    accumulate: PositiveInt = Field(
        1,
        description="parts of every batch, to save memory; the gradients are those of the whole batch, by a second "
        "pass where candidates have gradients; batch norm sees a part at a time, which those methods refuse unless "
        "train.batch_norm=per-chunk",
    )
    keep_last_batch: bool = Field(True, description="also train on the smaller last batch of an epoch")
    max_steps: PositiveInt | None = Field(None, description="stop early, for a trial")
    judge_every: PositiveInt | None = Field(
        None, description="epochs between two looks at R@1 of the validation samples; best.ckpt is that of the highest"
    )
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = Field(
        "32-true", description="of the encoders; mixed is faster on GPUs. The loss is always float32"
    )
    batch_norm: Literal["per-process", "sync", "shuffled", "per-chunk"] = Field(
        "per-process",
        description="statistics with several processes; sync needs GPUs, shuffled is MoCo's; per-chunk: of every part "
        "of train.accumulate, whose gradients are then not those of the whole batch",
    )


class SaveSettings(Section):
    """When checkpoints are written, whichever comes first; one is always written at the end."""

    every_steps: PositiveInt = Field(1000, description="steps between two checkpoints")
    every_minutes: PositiveFloat = Field(10, description="minutes between two checkpoints")
    keep: int = Field(
        0, ge=0, le=30, description="checkpoints kept on the way: after a half, a quarter, … of all steps"
    )


class LogSettings(Section):
    """What is written down."""

    every_steps: PositiveInt | None = Field(
        None,
        description="steps between two lines of metrics.jsonl; null: 10, fewer in a run of less than 500 steps, so "
        "that curves have 50 points",
    )
    logger: Literal["none", "tensorboard", "csv", "wandb"] = Field(
        "tensorboard", description="where metrics go besides metrics.jsonl; wandb needs its package"
    )


class PaperRow(Section):
    """Which row of which table of the paper this recipe stands for."""

    table: str = Field(description="name of the table")
    row: str = Field(description="name of the row")


class Recipe(Section):
    """Everything one training run depends on. `rince.config.reading` makes the class that has the keys of its kinds."""

    name: str = Field(description="what tables and pages call it")
    about: str = Field("", description="what it is, in a line")
    scale: Scale = Field(
        "full", description="full: as in the paper; else the block of the recipe that has this name is merged over it"
    )
    paper: PaperRow | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(123, description="of all that is drawn: order, views, weights")
    data: DataSettings
    views: Any = None
    model: ModelSettings
    method: MethodSettings
    ranks: RankSettings | None = None
    loss: LossSettings | None = None
    bank: BankSettings | None = None
    twin: TwinSettings | None = None
    optimizer: OptimizerSettings = OptimizerSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    train: TrainSettings = TrainSettings()
    save: SaveSettings = SaveSettings()
    log: LogSettings = LogSettings()

    @property
    def seen_views(self) -> Any:
        """The section `views`, filled in with what the network says of its input."""
        return self.model.fit_views(self.views)

    def prepared(self, source: Any) -> Any:
        """Samples as they are trained on and judged: what the network takes, or its features of them."""
        views = self.seen_views
        return self.model.prepare(source, views, facts=self.data.input_facts(views), seed=self.seed)

    @property
    def terms(self) -> tuple[TermSettings, ...]:
        """Of the ranked loss; none for methods that have another."""
        return tuple(self.loss.terms) if self.loss else ()

    def terms_for(self, ranks: int) -> tuple[TermSettings, ...]:
        """The terms of as many ranks, as far as there are."""
        return tuple(self.loss.terms_for(ranks)) if self.loss else ()

    @property
    def own_ranks(self) -> tuple[int, ...]:
        """What each of a sample's own keys is to it; none for methods without keys."""
        if not self.method.keys:
            return ()
        return self.ranks.own_ranks if self.ranks else (1,)

    @property
    def view_numbers(self) -> tuple[int, ...]:
        """The views of a sample that are trained on: the query's, 0, and those of its keys that take part."""
        return (0, *(view for view, rank in enumerate(self.own_ranks, start=1) if rank >= 0))

    @property
    def watched_numbers(self) -> tuple[int, ...]:
        """Views of its keys that take no part: none is trained on, but the log tells how similar they are."""
        return tuple(view for view, rank in enumerate(self.own_ranks, start=1) if rank < 0)

    @model_validator(mode="after")
    def _the_method_has_its_sections(self) -> Recipe:
        kind = self.method.kind
        if "loss" in self.method.uses and self.loss is None:
            raise ValueError(f"method.kind={kind} needs loss.terms, one for every rank")
        for name in OPTIONAL:
            if name not in self.method.uses and getattr(self, name) is not None:
                has = "has a loss of its own" if name == "loss" else f"has no {name}"
                raise ValueError(f"method.kind={kind} {has}; leave out `{name}`, or say {name}=null")
        return self

    @model_validator(mode="after")
    def _parts_fit(self) -> Recipe:
        self.method.check(self)
        if self.ranks is not None:
            self.ranks.check(self)
        if len(self.own_ranks) > self.data.own_keys:
            raise ValueError(
                f"ranks of {len(self.own_ranks)} keys of a sample's own need data that has them, such as "
                f"data.kind=videos; data.kind={self.data.kind} has {self.data.own_keys}"
            )
        if self.optimizer.backbone_lr is not None and not self.model.starts_from_weights:
            raise ValueError(
                "optimizer.backbone_lr is for a network that starts from weights: model.tune=all of a pretrained one, "
                "or model.start_from; leave it out"
            )
        if self.schedule.kind == "plateau" and not self.method.validates:
            raise ValueError(
                f"schedule.kind=plateau needs a validation loss, which method.kind={self.method.kind} does not have"
            )
        return self

    @model_validator(mode="after")
    def _batches_can_be_made(self) -> Recipe:
        asked = [
            f"data.{key}={value}" for key, value in (("batches", self.data.batches), ("balance", self.data.balance))
        ]
        asked = [each for each in asked if not each.endswith(("=random", "=none"))]
        if asked and self.method.makes_batches:
            raise ValueError(f"method.kind={self.method.kind} makes batches of its own kind; leave out {asked[0]}")
        if self.data.batches != "ranked" and self.data.per_class != 2:
            raise ValueError(f"data.per_class={self.data.per_class} is of data.batches=ranked, which is not asked for")
        if self.data.batches == "ranked" and self.ranks is None:
            raise ValueError(f"data.batches=ranked needs ranks, which method.kind={self.method.kind} does not have")
        return self

    @model_validator(mode="after")
    def _something_is_held_out(self) -> Recipe:
        looks = "schedule.kind=plateau" if self.schedule.kind == "plateau" else "train.judge_every"
        wanted = self.schedule.kind == "plateau" or self.train.judge_every is not None
        if wanted and not self.data.validation:
            raise ValueError(
                f"{looks} looks at samples that are not trained on, and data.validation is 0; give it a share of each "
                "class, such as data.validation=0.1"
            )
        return self

    @model_validator(mode="after")
    def _batch_fits(self) -> Recipe:
        if self.bank is not None and self.train.batch > self.bank.size:
            raise ValueError(f"train.batch ({self.train.batch}) must not exceed bank.size ({self.bank.size})")
        if self.train.accumulate > 1 and not self.method.splits_batches:
            raise ValueError(f"method.kind={self.method.kind} compares all samples of a batch; use train.accumulate=1")
        if self.train.batch % self.train.accumulate:
            raise ValueError(f"train.accumulate ({self.train.accumulate}) must divide train.batch ({self.train.batch})")
        if self.schedule.kind.startswith("cosine") and self.schedule.warmup_epochs >= self.train.epochs:
            raise ValueError(
                f"schedule.warmup_epochs ({self.schedule.warmup_epochs}) must be below train.epochs "
                f"({self.train.epochs}); lower it, it may be 0"
            )
        if self.schedule.warmup_epochs and self.schedule.warmup_from > self.optimizer.lr:
            raise ValueError(
                f"schedule.warmup_from ({self.schedule.warmup_from}) is above optimizer.lr ({self.optimizer.lr}), so "
                "the rate would fall; lower it, it may be 0"
            )
        if self.train.batch_norm == "shuffled" and (self.train.accumulate > 1 or self.twin is None):
            reason = "shuffles whole batches; use train.accumulate=1" if self.twin else "is for methods with a twin"
            raise ValueError(f"train.batch_norm=shuffled {reason}")
        if self.train.batch_norm == "per-chunk" and self.train.accumulate == 1:
            raise ValueError("train.batch_norm=per-chunk is of train.accumulate, which is 1; leave it out")
        return self

    def to_yaml(self) -> str:
        """The recipe as a file that `load_recipe` reads back to an equal one."""
        return yaml_text(self.model_dump(mode="json"))
