"""`rince evaluate`: a run, judged before and after its head: results.json, figures.json, queries.safetensors."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

import rince
from rince.config import DataSettings
from rince.errors import ConfigError, DataError, RinceError
from rince.evaluation.finetune import finetuned
from rince.evaluation.judge import Verdict, by_name, copies_note, judge, shared_note, unseen_note
from rince.evaluation.probe import ProbeKind
from rince.evaluation.queries import Queries, numbered, write_queries
from rince.evaluation.samples import Samples, read_gains, read_outliers, read_samples, unseen_in
from rince.evaluation.shares import Processes, start_processes
from rince.evaluation.trained import (
    HELD_OUT,
    TRAINED,
    Embedded,
    TrainedRun,
    classify,
    embed_once,
    embed_share,
    open_trained,
)
from rince.files import check_place, write_out, write_whole
from rince.hierarchy.class_lists import outlier_name, split_source
from rince.hierarchy.levels import OWN, class_levels, class_paths, group_numbers, levels_fingerprint
from rince.sources.feed import Feed
from rince.sources.order import OneByOne
from rince.sources.source import Source, alike_note, copies_in, left_out_notes, row_digests, rows_in
from rince.sources.splits import other_set, set_name
from rince.terminal import Say, Tell, nobody
from rince.train.checkpoint import load_checkpoint
from rince.train.record import BEST, CHECKPOINT
from rince.train.setup import NOTHING, Brought

RESULTS, FIGURES = "results.json", "figures.json"
VALIDATION = "validation"  # the split that `data.validation` makes
SHOWN = 5  # notes of a source that are told
SHORT = 16  # digits of a sha256 that tell whether a file is still the same


def evaluate(
    folder: Path,
    *,
    outliers: Sequence[str | Source] = (),
    probe: ProbeKind = "fast",
    unfinished: bool = False,
    split: str | None = None,
    on: Sequence[str] = (),
    data: str | None = None,
    taxonomy: str | None = None,
    finetune: bool = False,
    checkpoint: Literal["last", "best"] = "last",
    brought: Brought = NOTHING,
    devices: int = 1,
    accelerator: str = "auto",
    tell: Tell = nobody,
    say: Say = nobody,
) -> Verdict:
    """Judges a run and writes what it finds into its folder.

    Args:
        folder: of the run.
        outliers: data sources whose test samples are of no class of the run; `SOURCE:LIST` for some of its classes;
            or sources as objects.
        probe: which protocol.
        unfinished: also take a run that has not come to its end.
        split: to test on, in place of the recipe's test split; `validation` for what `data.validation` holds out, which
            then looks for samples that were trained on.
        on: data to judge it on; its own by default. Names of metrics on other data end in ` on NAME`.
        data: where its own data lies now; other data counts as given by `on`.
        taxonomy: to group the classes by, in place of the recipe's: a file, or what `data.taxonomy` takes.
        finetune: also train a classifier from the run's network, in a run folder of its own below it.
        checkpoint: the last one, or that of the highest R@1 on validation, which `train.judge_every` keeps.
        brought: what the run was given as objects.
        devices: processes, each with a device of its own, that embed a share each; the first judges and writes, and
            the others return nothing.
        accelerator: where to do it.
        tell: is told how far it is.
        say: is told what a person should know.
    """
    run = open_trained(folder, brought, accelerator=accelerator, file=BEST if checkpoint == "best" else CHECKPOINT)
    if not unfinished:
        _refuse_unfinished(run)
    if on and outliers:
        raise ConfigError("--outliers are judged against the run's own data; leave out --on, or --outliers")
    looked_at: dict[str, str | None] = {"data": None, "taxonomy": None}
    if data is not None or taxonomy is not None:
        if on:
            raise ConfigError(
                "--data and --taxonomy say where a run's own data is, and --on judges other data; give one"
            )
        run, on, looked_at = _elsewhere(run, data, taxonomy, say)
    metrics: dict[str, float] = {}
    protocol: dict[str, str] = {}
    outlier_data: dict[str, str] = {}
    figures: dict[str, Any] = {"curves": {}, "outliers": {}, "class_similarity": {}, "sets": {}}
    queries = Queries(run.checkpoint, {}, {}, {})
    sets = [
        JudgedSet(run, source, name, split, taxonomy=looked_at["taxonomy"])
        for name, source in by_name(list(on) or [run.recipe.data.source], set_name, "sets of data").items()
    ]
    if not _share(run, sets, outliers, devices, accelerator).is_first:
        return Verdict({}, {}, {}, {})
    for judged in sets:
        verdict = judged.judge(outliers, probe, finetune=finetune, tell=tell, say=say)
        metrics |= verdict.metrics
        protocol |= verdict.protocol
        for kind in ("curves", "outliers"):
            figures[kind] |= verdict.figures[kind]
        figures["class_similarity"] = figures["class_similarity"] or verdict.figures["class_similarity"]
        figures["sets"][judged.name] = judged.noted()
        outlier_data |= judged.outliers
        queries.tests[judged.on] = judged.test.fingerprint
        queries.values.update(verdict.queries)
        if judged.test.sample_groups is not None:
            queries.groups[judged.on] = numbered(judged.test.sample_groups)
    facts = _facts(run, figures["sets"]) | {"split": split or run.recipe.data.test_split, "outliers": outlier_data}
    facts |= {"looked_at": looked_at}
    results = facts | {"metrics": metrics, "protocol": protocol}
    replaced = _replaced_note(folder / RESULTS, results)
    if replaced:
        say(replaced)
    write_whole(folder / FIGURES, json.dumps({"checkpoint": run.checkpoint} | figures) + "\n")
    write_queries(folder, queries)
    write_whole(folder / RESULTS, json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    return Verdict(metrics, protocol, figures, queries.values)


def _replaced_note(path: Path, results: dict[str, Any]) -> str:
    """Says what the results of before were of, where the new ones are of something else; empty if they are not."""
    try:
        before = dict(json.loads(path.read_text("utf-8")))
        gone = sorted(set(before["outliers"]) - set(results["outliers"]))
        was, now = ({key: str(each[key]) for key in ("split", "checkpoint_file")} for each in (before, results))
    except (OSError, ValueError, TypeError, KeyError):  # none, damaged, or of an older rince
        return ""
    lost = [f"split {was['split']!r}"] * (was["split"] != now["split"])
    lost += [was["checkpoint_file"]] * (was["checkpoint_file"] != now["checkpoint_file"])
    lost += [f"outliers {', '.join(gone)}"] * bool(gone)
    if not lost:
        return ""
    return f"{path} had numbers of {' and '.join(lost)}: they are replaced; judge that again to have them back"


def _share(
    run: TrainedRun, sets: Sequence[JudgedSet], outliers: Sequence[str | Source], devices: int, accelerator: str
) -> Processes:
    """Embeds, on several processes, a share of everything that will be judged; the first finds all of it."""
    processes = start_processes(run, devices, accelerator)
    if processes.count == 1:
        return processes
    sources = {name: source for each in sets for name, source in each.embedded().items()}
    for name, place in by_name(list(outliers), _outlier_name, "outlier sets").items():
        sources[f"outliers-{name}"] = _outlier_source(run, place)
    for source in sources.values():
        source.make(processes.number, processes.count)
    processes.meet()
    for name, source in sources.items():
        embed_share(run, source, name, processes.number, processes.count)
    processes.meet()
    return processes


def _elsewhere(
    run: TrainedRun, data: str | None, taxonomy: str | None, say: Say
) -> tuple[TrainedRun, list[str], dict[str, str | None]]:
    """A run whose data is somewhere else, or is grouped otherwise.

    Returns:
        The run; the data that is not its own, to judge it on; and what a report has to know to open it again.
    """
    if run.recipe.data.brought_as:
        raise ConfigError(
            "the data of this run was given as objects: open it with others, rince.open_run(FOLDER, source=…)"
        )
    places = {"data": data, "taxonomy": taxonomy}  # by their whole paths, so that a report finds them from anywhere
    looked_at = {key: str(Path(at).resolve()) if at and os.path.exists(at) else at for key, at in places.items()}
    if data is None:
        return run.looked_at(taxonomy=looked_at["taxonomy"]), [], looked_at
    there = run.looked_at(*looked_at.values())
    before = run.noted("train")
    if before not in (None, there.open(there.recipe.data.train_split).fingerprint):
        say(f"{data} is not what {run.folder} was trained on: its numbers are called ' on {set_name(data)}'")
        return run, [data], looked_at | {"data": None}
    return there, [], looked_at


def _refuse_unfinished(run: TrainedRun) -> None:
    reached = run.step if run.file == CHECKPOINT else int(load_checkpoint(run.folder / CHECKPOINT, {"step"})["step"])
    if reached < run.steps:
        raise DataError(
            f"{run.folder} stopped at step {reached} of {run.steps}; finish it with `rince train --resume {run.folder}`"
            ", or judge it as it is with --unfinished"
        )


def _facts(run: TrainedRun, sets: dict[str, Any]) -> dict[str, Any]:
    """What was judged, by whom: all that results say besides numbers."""

    def of_sides(tell: Callable[[dict[str, Any]], Any]) -> dict[str, dict[str, Any]]:
        return {name: {side: tell(noted[side]) for side in ("train", "test")} for name, noted in sets.items()}

    return {
        "recipe": run.recipe.name,
        "scale": run.recipe.scale,
        "seed": run.recipe.seed,
        "paper": run.recipe.paper.model_dump() if run.recipe.paper else None,
        "step": run.step,
        "of_steps": run.steps,
        "checkpoint": run.checkpoint,
        "checkpoint_file": run.file,
        "place": run.place,
        "samples": of_sides(lambda noted: len(noted["labels"])),
        "left_out": of_sides(lambda noted: len(noted["left_out"])),
        "data": of_sides(lambda noted: noted["fingerprint"]),
        "content": of_sides(lambda noted: noted["content"]),
        "unseen": {name: noted["unseen"] for name, noted in sets.items()},
        "copies": {name: noted["copies"] for name, noted in sets.items()},
        "rince": rince.__version__,
    }


class JudgedSet:
    """A training and a test set that a run is judged on.

    Args:
        run: to judge.
        source: its own data, or other data of the same kind.
        name: of the set.
        split: to test on; by default the recipe's, or that of other data called test.
        taxonomy: of other data; by default what stands in it, if that is the run's, else none.

    Attributes:
        outliers: name → fingerprint of the outliers that it was judged with, as they lie there.
        unseen: classes that only its test set has → how many samples; known once it was judged.
        copies: test samples that have the content of a training sample under another name; likewise.
    """

    def __init__(
        self, run: TrainedRun, source: str, name: str, split: str | None = None, taxonomy: str | None = None
    ) -> None:
        self.run, self.name = run, name
        self.on = other_set(source, run.recipe.data.source)
        self.data = _data_of(run, source, taxonomy)
        self.splits = self.data.train_split, split or self.data.test_split
        if split == VALIDATION and self.data.validation:
            self.splits = TRAINED, HELD_OUT
        self.train, self.test = (run.open(which, self.data if self.on else None) for which in self.splits)
        if not self.on and self.splits[0] != TRAINED:
            run.check_trained_on(self.train)
        if self.train.class_names != self.test.class_names:
            raise DataError(f"the splits of {source!r} do not have the same classes; name them alike")
        self.levels = class_levels(self.train, self.data.taxonomy)
        self.outliers: dict[str, str] = {}
        self.unseen: dict[str, int] = {}
        self.copies = 0
        self.same = rows_in(self.test, self.train)

    def judge(
        self,
        outliers: Sequence[str | Source],
        probe: ProbeKind,
        *,
        finetune: bool = False,
        tell: Tell = nobody,
        say: Say = nobody,
    ) -> Verdict:
        """All numbers of the set."""
        run = self.run
        drawn_anew = self.train.for_probe() if probe == "paper" else None  # is refused, if need be, before all work
        for source in (self.train, self.test):
            _tell_notes(source, source.source, say)
        alike = alike_note(self.train.class_names)
        if alike:
            say(f"{self.data.source}: {alike}")
        train, test = (load_samples(run, s, self.levels, name, tell) for name, s in self.embedded().items())
        test = replace(test, same=self.same)
        if test.shared:
            say(f"{self.data.source}: {shared_note(test)}")
        self.copies = copies_in(self.test.digests(), self.train.digests(), self.same)
        if self.copies:
            say(f"{self.data.source}: {copies_note(self.copies, len(self.test))}")
        self.unseen = unseen_in(train, test)
        if self.unseen:
            say(f"{self.data.source}: {unseen_note(self.unseen)}")
        others = {
            name: _outlier_source(run, place)
            for name, place in by_name(list(outliers), _outlier_name, "outlier sets").items()
        }
        self.outliers = {name: source.content for name, source in others.items()}
        classified, how = self._classified(finetune=finetune, tell=tell, say=say)
        strangers = {name: _outliers(run, name, source, tell, say) for name, source in others.items()}
        verdict = judge(
            train,
            test,
            outliers={name: made.features for name, made in strangers.items()},
            outlier_embeddings={name: made.embeddings for name, made in strangers.items()},
            after_head=run.has_head,
            probe=probe,
            epoch_features=None if drawn_anew is None else _epoch_features(run, drawn_anew),
            rank_source=None if self.on else run.class_ranks(self.train, say),
            rank_name=f"ranks.kind={run.recipe.ranks.kind}" if run.recipe.ranks else "",
            classified=classified,
            classifier=how,
            on=self.on,
            copies=self.copies,
            tell=tell,
        )
        if self.splits == (TRAINED, HELD_OUT):
            verdict.protocol["samples"] = (
                f"test set: {len(self.test):,} samples held out by data.validation; training set: the "
                f"{len(self.train):,} samples that were trained on"
            )
        if self.test.copies > 1:
            many = f"mean over {self.test.copies} views of a {self.test.thing}, spread evenly over it"
            verdict.protocol["features"] = many
        return verdict

    def embedded(self) -> dict[str, Source]:
        """What is embedded of it, by the names that features are kept under."""
        return {f"{self._prefix}{side}": source for side, source in self._sides()}

    @property
    def _prefix(self) -> str:
        return f"{self.name}-" if self.on else ""

    def _sides(self) -> tuple[tuple[str, Source], tuple[str, Source]]:
        return ("train", self.train), ("test", self.test)

    def _classified(self, *, finetune: bool, tell: Tell, say: Say) -> tuple[Tensor | None, str]:
        """What a classifier finds the test samples to be, and how it was made."""
        run = self.run
        if finetune:
            run = finetuned(self.run, self.name, self.data, say=say)
        elif self.on or not run.recipe.method.classifies:  # other data has other classes
            return None, ""
        how = f"cross-entropy from the run's network; {run.recipe.train.epochs} epochs"
        how += f"; class probabilities of a test {self.test.thing}: mean over its views" if self.test.copies > 1 else ""
        return classify(run, self.test, tell=lambda done, of: tell("classes, test", done, of)), how

    def noted(self) -> dict[str, Any]:
        """What a report has to know of the set, so that it can be made without it."""
        sides = {
            side: {
                "fingerprint": source.fingerprint,
                "content": source.content,
                "labels": source.labels.tolist(),
                "names": _file_names(source),
                "contents": [content[:SHORT] for content in source.contents],
                "left_out": [name for name, _ in source.left_out],
            }
            for side, source in self._sides()
        }
        return {
            "source": self.data.source,
            "taxonomy": self.data.taxonomy,
            "thing": self.test.thing,
            "moves": self.test.moves,
            "splits": dict(zip(("train", "test"), self.splits, strict=True)),
            "classes": list(map(str, self.test.class_names)),
            "paths": class_paths(self.test, self.data.taxonomy),
            "levels": self.levels,
            "grouping": levels_fingerprint(self.levels),
            "same": None if self.same is None else self.same.tolist(),
            "unseen": self.unseen,
            "copies": self.copies,
            **sides,
        }


def _file_names(source: Source) -> list[str] | None:
    """What the samples are called; None if by their rows, which are those of others once the data has changed."""
    names = [source.name(row) for row in range(len(source))]
    return None if all(name.isdecimal() for name in names) else names


def _data_of(run: TrainedRun, source: str, taxonomy: str | None = None) -> DataSettings:
    """The settings of a run's own data, or the same with another source, all of whose classes and samples count."""
    own = run.recipe.data
    if not other_set(source, own.source):
        return own
    taxonomy = taxonomy or (own.taxonomy if own.taxonomy in OWN else "none")
    changes = {"train_split": "train", "test_split": "test", "limit": None, "classes": None, "validation": 0.0}
    return own.model_copy(update={"source": source, "taxonomy": taxonomy, **changes})


def reopened(run: TrainedRun, source: str, split: str) -> Callable[[], Source]:
    """One side of a set that was judged, to be opened again."""
    on = other_set(source, run.recipe.data.source)
    return lambda: run.open(split, _data_of(run, source) if on else None)


def regrouped(run: TrainedRun, noted: dict[str, Any], samples: Source) -> bool:
    """Whether the classes of a set are grouped otherwise than when it was judged, as far as can be told.

    Args:
        run: that was judged.
        noted: of the set, by `JudgedSet.noted`.
        samples: of the set, as they are now.
    """
    if list(map(str, samples.class_names)) != noted["classes"]:
        return False  # some are gone, and their groups with them
    try:
        levels = class_levels(samples, noted.get("taxonomy") or _data_of(run, noted["source"]).taxonomy)
    except RinceError:  # the taxonomy is gone
        return False
    return levels_fingerprint(levels) != str(noted["grouping"])


def levels_of(run: TrainedRun, source: Source) -> dict[str, list[str]]:
    """The levels of samples that a run is shown, by its taxonomy if that knows them; nothing if they have no labels."""
    if not source.is_labelled:
        return {}
    try:
        return class_levels(source, run.recipe.data.taxonomy)
    except DataError:  # these are other classes
        return class_levels(source, "none")


def open_split(run: TrainedRun, source: str, split: str) -> Source:
    """A split of labelled data, the run's own or other data of its kind."""
    return reopened(run, source, split)()


def load_samples(run: TrainedRun, source: Source, levels: dict[str, list[str]], name: str, tell: Tell) -> Samples:
    """Features, embeddings and the labels of every level; `levels` is what `class_levels` gives."""
    made = embed_once(run, source, name, tell=lambda done, of: tell(f"features, {name}", done, of))
    labels = {level: group_numbers(groups)[source.labels].to(run.device) for level, groups in levels.items()}
    return Samples(made.features, labels, made.embeddings, class_names=tuple(map(str, source.class_names)))


def _tell_notes(source: Source, name: str, say: Say) -> None:
    _tell_few(source.notes(), name, say)


def tell_left_out(source: Source, say: Say) -> None:
    """Says which samples cannot be read and are left out, if any."""
    _tell_few(left_out_notes(source), source.source, say)


def _tell_few(notes: Sequence[str], name: str, say: Say) -> None:
    for note in notes[:SHOWN]:
        say(f"{name}: {note}")
    if len(notes) > SHOWN:
        say(f"{name}: … and {len(notes) - SHOWN} more")


def _outlier_name(place: str | Source) -> str:
    return Path(place.source).name if isinstance(place, Source) else outlier_name(place)


def _outlier_source(run: TrainedRun, place: str | Source) -> Source:
    where, classes = (place, None) if isinstance(place, Source) else split_source(place)
    return run.outliers(where, classes=classes)


def _outliers(run: TrainedRun, name: str, source: Source, tell: Tell, say: Say) -> Embedded:
    _tell_notes(source, f"outliers {name}", say)
    return embed_once(run, source, f"outliers-{name}", tell=lambda done, of: tell(f"features, {name}", done, of))


def _epoch_features(run: TrainedRun, source: Source) -> Callable[[int], Tensor]:
    """Training features of an epoch of the paper's probe: crop and flip, drawn anew every epoch."""
    recipe, order = run.recipe, OneByOne(len(source), source.at_once)
    feed = Feed(source, order, seed=recipe.seed, device=run.device, workers=recipe.data.workers, numbers=(0,))

    def features(epoch: int) -> Tensor:
        with torch.no_grad():
            return torch.cat([run.encoder.features(step.views[0]).float() for step in feed.epoch(epoch)])

    return features


def evaluate_files(
    train: Path,
    test: Path,
    *,
    outliers: Sequence[Path] = (),
    taxonomy: str | None = None,
    gains: Path | None = None,
    out: Path | None = None,
    tell: Tell = nobody,
    say: Say = nobody,
) -> Verdict:
    """Judges vectors that were saved by any library.

    Args:
        train: file of the vectors that are searched, and that probe and Gaussians learn from.
        test: file of the queries and inliers.
        outliers: files of vectors of no class.
        taxonomy: what the classes are grouped by, see `read_samples`.
        gains: `.npy` or `.npz` file of what each training vector (column) is worth to each test vector (row).
        out: JSON file to write the numbers to.
        tell: is told how far it is.
        say: is told what a person should know.
    """
    if out is not None:
        check_place(out)
    known, asked = read_samples(train, test, taxonomy=taxonomy, say=say)
    if known.features.equal(asked.features):  # one file, or a copy of it
        asked = replace(asked, same=torch.arange(len(asked.features)))
        say(shared_note(asked))
    copies = copies_in(row_digests(asked.features), row_digests(known.features), asked.same)
    if copies:
        say(copies_note(copies, len(asked.features)))
    unseen = unseen_in(known, asked)
    if unseen:
        say(unseen_note(unseen))
    width = known.features.shape[1]
    far = by_name(list(outliers), lambda path: outlier_name(str(path)), "outlier sets")
    strangers = {name: read_outliers(path, width) for name, path in far.items()}
    worth = None if gains is None else read_gains(gains, len(asked.features), len(known.features))
    verdict = judge(known, asked, outliers=strangers, gains=worth, copies=copies, tell=tell)
    if out is not None:
        read = {"train": str(train), "test": str(test), "outliers": list(map(str, outliers)), "taxonomy": taxonomy}
        read |= {} if gains is None else {"gains": str(gains)}
        found = {"copies": copies, "unseen": unseen, "metrics": verdict.metrics, "protocol": verdict.protocol}
        write_out(out, json.dumps(read | found, indent=2, ensure_ascii=False) + "\n")
    return verdict


def read_results(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Results and figures of a run that was evaluated, or a clear error."""
    absent = [name for name in (RESULTS, FIGURES) if not os.path.isfile(folder / name)]
    if absent:
        raise DataError(f"{folder} was not evaluated: it has no {absent[0]}; run `rince evaluate {folder}` first")
    try:
        results, figures = (dict(json.loads((folder / name).read_text("utf-8"))) for name in (RESULTS, FIGURES))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"the results in {folder} are damaged ({error}); run `rince evaluate {folder}` again") from None
    if not figures.get("sets") or any("contents" not in each.get("test", {}) for each in figures["sets"].values()):
        raise DataError(f"{folder} was judged by an older rince; run `rince evaluate {folder}` again")
    judged = {
        name: {side: each[side]["fingerprint"] for side in ("train", "test")} for name, each in figures["sets"].items()
    }
    if results.get("data", judged) != judged:  # killed between the two, on other samples than the time before
        raise DataError(
            f"{RESULTS} and {FIGURES} in {folder} are of different samples; run `rince evaluate {folder}` again"
        )
    return results, figures
