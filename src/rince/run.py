"""The door for Python: `fit` trains, a `Run` is looked at, `open_run` opens one again; the command line is a shell.

    run = rince.fit("images/rince-in", "train.epochs=5", source="PHOTOS", encoder=my_network, out="runs/photos")
    run.evaluate()
    run.neighbours("query.jpg", "PHOTOS/test")

Nothing heavy is imported before it is used, so that `import rince` costs torch alone.
"""

# ruff: noqa: PLC0415 - see above

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from rince.errors import ConfigError, DataError
from rince.terminal import Say, is_first_process, nobody

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rince.config import Recipe
    from rince.evaluation.answers import Answer
    from rince.evaluation.lookup import Found, Which
    from rince.evaluation.trained import TrainedRun
    from rince.ranks import RankSource
    from rince.sources import Source
    from rince.train.record import Checkpoint
    from rince.train.setup import Brought

    Samples = str | Path | Source | Sequence[str]


def fit(
    recipe: str | Path | Recipe,
    *changes: str,
    out: str | Path,
    source: str | Path | Source | None = None,
    test_source: Source | None = None,
    encoder: nn.Module | None = None,
    rank_source: RankSource | None = None,
    devices: int = 1,
    accelerator: str = "auto",
) -> Run:
    """Trains an encoder by a recipe, and with what you bring in place of the recipe's parts.

    Args:
        recipe: a name (`rince ls` lists them), a YAML file, or a recipe that was loaded.
        changes: as on the command line, such as `"train.epochs=5"`.
        out: folder of the run; made, and must be new or empty.
        source: training samples: what `data.source` takes, or a source such as `rince.sources.from_dataset(…)`.
        test_source: what to judge the run on, where `source` is an object.
        encoder: any module that makes features `(batch, dim)` of a batch; it gets a head, unless it is a
            `rince.encoders.Encoder`, which has its own. It is trained in place, and gets the weights of a run again
            whenever that is looked at: give each run a network of its own.
        rank_source: what candidates are to queries, in place of the recipe's `ranks`: `rince.TableRanks(…)`, or any
            object with `ranks`, `by` and `fingerprint` that is called with labels.
        devices: processes, each with a device of its own.
        accelerator: `"auto"`, `"cpu"`, `"cuda"` or `"mps"`.

    Returns:
        The run, trained to its end. Interrupted, it is saved first; go on with `rince.open_run(out, …).resume()`.
    """
    from rince.config import recipe_values, validate, with_overrides
    from rince.config.reading import of_its_row
    from rince.train.setup import Brought

    for change in changes:
        if not isinstance(change, str):
            raise ConfigError(f"a change is text such as 'train.epochs=5', got {change!r}")
        if change.startswith("data.source=") and source is not None:
            raise ConfigError(f"the samples are given twice, by source=… and by {change!r}; leave out one")
    values = recipe_values(recipe, changes)
    if isinstance(source, str | Path):
        values = with_overrides(values, [f"data.source={json.dumps(str(source))}"])
        source = None
    brought = _checked(Brought(source, test_source, encoder, rank_source))
    named = _sections_of(brought, values)
    values = with_overrides(values | named, changes, list(named)) if named else values
    name = recipe if isinstance(recipe, str | Path) else recipe.name
    chosen = of_its_row(validate(values, str(name)))
    run = Run(Path(out), chosen, brought)
    run.train(resume=False, devices=devices, accelerator=accelerator)
    return run


def open_run(
    folder: str | Path,
    *,
    source: Source | None = None,
    test_source: Source | None = None,
    encoder: nn.Module | None = None,
    rank_source: RankSource | None = None,
    checkpoint: Checkpoint = "last",
) -> Run:
    """Opens a run again; what it was given as objects has to be given again.

    Args:
        folder: of the run.
        source: of its training samples, if that was an object.
        test_source: what to judge it on, likewise.
        encoder: its network, likewise; the run's weights are loaded into it.
        rank_source: its ranks, likewise.
        checkpoint: whose weights everything is made with: the last one, or `"best"`, that of the highest R@1 on
            validation, which `train.judge_every` keeps.
    """
    from rince.train.record import recipe_of
    from rince.train.setup import Brought

    brought = _checked(Brought(source, test_source, encoder, rank_source))
    return Run(Path(folder), recipe_of(Path(folder)), brought, checkpoint)


class Run:
    """A training run in its folder: made by `fit`, opened again by `open_run`.

    Attributes:
        folder: of the run.
        recipe: of the run.
        checkpoint: whose weights it is judged and used with.
    """

    def __init__(self, folder: Path, recipe: Recipe, brought: Brought, checkpoint: Checkpoint = "last") -> None:
        self.folder, self.recipe, self._brought, self.checkpoint = folder, recipe, brought, checkpoint

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, recipe={self.recipe.name!r})"

    @property
    def log(self) -> list[dict[str, Any]]:
        """What training logged, a dict for every logged step."""
        from rince.train.record import logged_lines

        return logged_lines(self.folder)

    @property
    def results(self) -> dict[str, Any]:
        """What `evaluate` found; `results["metrics"]` has the numbers, `results["protocol"]` how they were made."""
        from rince.evaluation.evaluate import read_results

        return read_results(self.folder)[0]

    def resume(self, *, devices: int = 1, accelerator: str = "auto") -> Run:
        """Goes on where the run stopped, exactly; nothing happens to one that has come to its end."""
        self.train(resume=True, devices=devices, accelerator=accelerator)
        return self

    def train(self, *, resume: bool, devices: int = 1, accelerator: str = "auto") -> None:
        """Trains to the end; raises KeyboardInterrupt if it was interrupted, and saved."""
        from rince.evaluation.places import recall_by_place
        from rince.train.loop import train
        from rince.train.runtime import Runtime

        settings = self.recipe.train
        runtime = Runtime(devices, settings.precision, accelerator, settings.batch_norm)
        done = train(self.recipe, self.folder, runtime, resume=resume, brought=self._brought, judge=recall_by_place)
        if not done:
            again = ", ".join(f"{name}=…" for name, value in self._brought._asdict().items() if value is not None)
            shell, python = (
                f"rince train --resume {self.folder}",
                f"rince.open_run({str(self.folder)!r}, {again}).resume()",
            )
            raise Interrupted(f"interrupted and saved; go on with: {python if again else shell}")

    def evaluate(
        self,
        *,
        outliers: Samples | Sequence[Samples] = (),
        on: str | Path | Sequence[str | Path] = (),
        devices: int = 1,
        data: str | Path | None = None,
        taxonomy: str | Path | None = None,
        accelerator: str = "auto",
        **options: Any,
    ) -> dict[str, float]:
        """Judges the run and keeps what it finds, see `results`.

        Args:
            outliers: data whose samples are of no class of the run: one or several, each a place or a source.
            on: data of the same kind to judge it on, one or several, instead of its own.
            devices: processes, each with a device of its own, that embed a share each; the first judges.
            data: where its own data lies now.
            taxonomy: to group the classes by, in place of the recipe's: a file, or what `data.taxonomy` takes.
            accelerator: where to do it.
            options: `probe`, `split`, `finetune`, `checkpoint`, `unfinished` as of `rince evaluate`.

        Returns:
            The numbers by name; nothing on other processes than the first.
        """
        from rince.evaluation.evaluate import evaluate
        from rince.terminal import shown_progress

        with shown_progress(str(self.folder)) as tell:
            verdict = evaluate(
                self.folder,
                outliers=_several(outliers),
                on=_places(on),
                data=None if data is None else str(data),
                taxonomy=None if taxonomy is None else str(taxonomy),
                brought=self._brought,
                devices=devices,
                accelerator=accelerator,
                tell=tell,
                **{"checkpoint": self.checkpoint} | options,
            )
        return verdict.metrics

    @property
    def place(self) -> Which:
        """Where its vectors are taken if nobody says: what was better on validation, else `"features"`."""
        from rince.train.validation import recorded

        place: Which = recorded(self.folder).get("place", "features")
        return place

    def trained(self, accelerator: str = "auto") -> TrainedRun:
        """The run with its encoder, in the state of its checkpoint."""
        from rince.evaluation.trained import open_trained
        from rince.train.record import BEST, CHECKPOINT

        file = BEST if self.checkpoint == "best" else CHECKPOINT
        return open_trained(self.folder, self._brought, accelerator=accelerator, file=file)

    def embed(
        self,
        samples: Samples,
        *,
        which: Which | None = None,
        split: str | None = None,
        out: str | Path | None = None,
        accelerator: str = "auto",
        say: Say = nobody,
    ) -> Tensor:
        """`(samples, dim)`: what the encoder makes of new samples.

        Args:
            samples: a file, a folder, or a source; of a run on texts also a text, or a list of them.
            which: `"features"` before the head, or `"embeddings"` after it; by default `place`.
            split: of a place that holds labelled data, which is read as the run's own data is; without it, whatever
                samples are there.
            out: also write them to this parquet file, with a row for each: path, vector and, where there are labels,
                the label and every level above, so that it can be trained and judged on.
            accelerator: where to do it.
            say: is told if `samples` is no file, but a text.
        """
        from rince.evaluation.evaluate import levels_of
        from rince.evaluation.lookup import vectors_of, write_vectors
        from rince.terminal import shown_progress

        if out is not None:
            _check_parquet(out, "embeddings are")
        which = self.place if which is None else which
        run = self.trained(accelerator)
        source = _opened(run, samples, split, say, itself=True)
        with shown_progress(source.source) as tell:
            vectors = vectors_of(run, source, which, lambda done, of: tell(which, done, of))
        if out is not None:
            write_vectors(source, vectors, levels_of(run, source), Path(out))
        return vectors.cpu()

    def embed_into(
        self,
        out: str | Path,
        samples: Samples,
        *,
        which: Which | None = None,
        split: str | None = None,
        devices: int = 1,
        accelerator: str = "auto",
        say: Say = nobody,
    ) -> int:
        """Writes the file that `embed(samples, out=…)` writes, of samples of any number; returns how many.

        A part of them is in memory at a time; interrupted, the same call goes on where it stopped.

        Args:
            out: the file, which ends in `.parquet`.
            samples: a file, a folder, or a source.
            which: `"features"` before the head, or `"embeddings"` after it; by default `place`.
            split: of a place that holds labelled data, which is read as the run's own data is.
            devices: processes, each with a device of its own, that embed a share each; the first writes the file.
            accelerator: where to do it.
            say: is told if it goes on, and if `samples` is no file, but a text.
        """
        from rince.evaluation.evaluate import levels_of
        from rince.evaluation.shares import start_processes
        from rince.evaluation.streamed import embed_in_parts
        from rince.terminal import shown_progress

        _check_parquet(out, "embeddings are")
        which = self.place if which is None else which
        say = say if is_first_process() else nobody
        run = self.trained(accelerator)
        source = _opened(run, samples, split, say, itself=True)
        processes = start_processes(run, devices, accelerator)
        with shown_progress(source.source) as tell:
            levels = levels_of(run, source)
            parts = embed_in_parts(
                run, source, which, Path(out), levels, processes=processes, tell=partial(tell, which), say=say
            )
            if processes.is_first:
                parts.join()
        return len(source)

    def neighbours(
        self,
        query: Samples,
        gallery: Samples,
        *,
        k: int = 5,
        which: Which | None = None,
        split: str | None = None,
        picture: str | Path | None = None,
        accelerator: str = "auto",
        say: Say = nobody,
    ) -> list[Found]:
        """For every query the k nearest samples of a gallery by cosine; never the query itself.

        Args:
            query: a file, a folder, or a source; or a file that `embed` wrote; of a run on texts also a text.
            gallery: a file, a folder, or a source; or a file that `index` or `embed` wrote.
            k: how many.
            which: `"features"` before the head, or `"embeddings"` after it; by default `place`.
            split: of a gallery that is a place with labelled data, read as the run's own data is.
            picture: also draw them into this PNG file.
            accelerator: where to do it.
            say: is told if queries lie in the gallery, too, and if the query is no file, but a text.
        """
        from rince.evaluation.index import find_neighbours, gallery_of, is_index, open_index
        from rince.evaluation.lookup import draw_neighbours
        from rince.files import check_place
        from rince.terminal import shown_progress

        if picture is not None:
            check_place(Path(picture))
            if is_index(gallery):
                raise ConfigError(f"the index {gallery} keeps no pictures; give the samples themselves to draw them")
        which = self.place if which is None else which
        run = self.trained(accelerator)
        queries = _embedded(run, query, which, say) or _found(run, query, say, itself=True)
        with shown_progress(queries.source) as tell:
            done = partial(tell, which)
            if is_index(gallery):
                if split is not None:
                    raise ConfigError("an index is all of a gallery; leave out split")
                return find_neighbours(
                    run, queries, open_index(run, gallery, which), k=k, which=which, tell=done, say=say
                )
            labelled = None if split else _embedded(run, gallery, which, say)
            items = labelled or _opened(run, gallery, split, say)
            searched = gallery_of(run, items, which, done)
            found = find_neighbours(run, queries, searched, k=k, which=which, tell=done, say=say)
        if picture is not None:
            draw_neighbours(found, queries, items, Path(picture))
        return found

    def index(
        self,
        gallery: Samples,
        out: str | Path,
        *,
        which: Which | None = None,
        split: str | None = None,
        k: int | None = None,
        devices: int = 1,
        accelerator: str = "auto",
        say: Say = nobody,
    ) -> Path:
        """Embeds a gallery once and writes it to a parquet file, which `neighbours` and `predict` search where it lies.

        Labelled samples are calibrated for `predict`, see there. A part of the vectors is in memory at a time;
        interrupted, the same call goes on where it stopped.

        Args:
            gallery: a file, a folder, or a source.
            out: the file, which ends in `.parquet`.
            which: `"features"` before the head, or `"embeddings"` after it; by default `place`.
            split: of a place that holds labelled data, which is read as the run's own data is.
            k: how many neighbours `predict` will look at; 10 by default.
            devices: processes, each with a device of its own, that embed a share each; the first does the rest.
            accelerator: where to do it.
            say: is told what a person should know.
        """
        from rince.evaluation.answers import NEIGHBOURS, calibrate
        from rince.evaluation.index import write_index
        from rince.evaluation.shares import start_processes
        from rince.terminal import shown_progress

        _check_parquet(out, "an index is")
        which = self.place if which is None else which
        say = say if is_first_process() else nobody
        run = self.trained(accelerator)
        source = _opened(run, gallery, split, say)
        processes = start_processes(run, devices, accelerator)
        neighbours = NEIGHBOURS if k is None else k
        with shown_progress(source.source) as tell:
            calibrated = partial(calibrate, k=neighbours)
            write_index(
                run, source, which, Path(out), calibrated, processes=processes, tell=partial(tell, which), say=say
            )
        return Path(out)

    def predict(
        self,
        gallery: Samples,
        *queries: Samples,
        precision: float = 0.95,
        inliers: float = 0.95,
        which: Which | None = None,
        split: str | None = None,
        k: int | None = None,
        accelerator: str = "auto",
        say: Say = nobody,
    ) -> list[Answer]:
        """What queries are, by their neighbours in a labelled gallery: the class, a group above it, or unknown.

        The class if it is certain, else the deepest level of the taxonomy that is, else `"unknown"`. How much evidence
        makes a level certain is found by asking the gallery for its own samples, each as if it were not there, so that
        a gallery of new classes needs no training. The promise is for inputs like the gallery's.

        Args:
            gallery: labelled samples: a file, a folder, or a source; or a file that `index` or `embed` wrote.
            queries: files, folders, or sources; or files that `embed` wrote; of a run on texts also texts.
            precision: how often an answer of any level should be right; a level that cannot be sure of that, by the
                95 % lower bound, gives none.
            inliers: which share of inputs like the gallery's may have an answer; the others are too far from all of it.
            which: `"features"` before the head, or `"embeddings"` after it; by default `place`.
            split: of a gallery that is a place with labelled data, read as the run's own data is.
            k: how many neighbours are looked at; 10 by default, or as many as the index was made for.
            accelerator: where to do it.
            say: is told how sure every level is, and what else a person should know.
        """
        from rince.evaluation.answers import NEIGHBOURS, calibrate, calibration_of, predict, thresholds_of, told
        from rince.evaluation.index import gallery_of, is_index, open_index
        from rince.evaluation.lookup import vectors_of
        from rince.evaluation.vectors import unit_vectors
        from rince.terminal import shown_progress

        if not queries:
            raise ConfigError("give at least one query")
        which = self.place if which is None else which
        run = self.trained(accelerator)
        asked = [_embedded(run, query, which, say) or _found(run, query, say, itself=True) for query in queries]
        with shown_progress(str(self.folder)) as tell:
            done = partial(tell, which)
            if is_index(gallery):
                if split is not None:
                    raise ConfigError("an index is all of a gallery; leave out split")
                searched = open_index(run, gallery, which)
                calibration = calibration_of(searched, k)
            else:
                labelled = None if split else _embedded(run, gallery, which, say)
                searched = gallery_of(run, labelled or _opened(run, gallery, split, say), which, done)
                calibration = calibrate(searched, NEIGHBOURS if k is None else k)
            thresholds = thresholds_of(calibration, precision=precision, inliers=inliers)
            for line in told(thresholds, calibration, precision):
                say(line)
            answers = []
            for source in asked:
                vectors = unit_vectors(vectors_of(run, source, which, done), which)
                answers += predict(searched, source, vectors, thresholds, calibration.neighbours)
        return answers

    def export(self, folder: str | Path, *, which: Which | None = None, say: Say = nobody) -> list[Path]:
        """Writes the encoder for other programs: safetensors weights, an ONNX graph, and what its input looks like.

        Of texts also the tokeniser's files, and a folder that `SentenceTransformer` opens.

        Args:
            folder: to write to; new or empty.
            which: what to take of `"features"` and `"embeddings"`, both of which the graph gives; by default `place`.
            say: is told what could not be written.
        """
        from rince.evaluation.export import export

        return export(self.trained("cpu"), Path(folder), which=which, say=say)

    def report(self, out: str | Path, *, beside: Sequence[Run] = ()) -> Path:
        """Writes a page about this run, and others beside it, with figures and tables as files; returns the page."""
        from rince.report.page import write_report
        from rince.terminal import shown_progress

        runs = [self, *beside]
        with shown_progress("report") as tell:
            brought = {run.folder: run._brought for run in runs}
            return write_report([run.folder for run in runs], Path(out), brought=brought, tell=tell).page


class Interrupted(KeyboardInterrupt):
    """A run was interrupted and saved."""


def _several(given: Any) -> list[Any]:
    """One or several places or sources as a list; paths as text."""
    from rince.sources import Source

    each = [given] if isinstance(given, str | Path | Source) else list(given)
    for one in each:
        if not isinstance(one, str | Path | Source):
            raise ConfigError(f"give places or sources, got {type(one).__name__}; wrap samples in from_dataset(…)")
    return [str(one) if isinstance(one, Path) else one for one in each]


def _places(given: Any) -> list[str]:
    """The same, where a training and a test split have to be found."""
    each = _several(given)
    for one in each:
        if not isinstance(one, str):
            raise ConfigError(f"on=… takes places that have a train and a test split, got {type(one).__name__}")
    return each


def _found(run: TrainedRun, samples: Samples, say: Say, *, itself: bool = False) -> Source:
    """Samples that a person gives.

    Args:
        run: that is to embed them.
        samples: a file, a folder or a source.
        say: is told of a sample that is given itself, and of those that cannot be read.
        itself: whether a sample may be given itself; if not, that is a missing file.
    """
    from rince.evaluation.evaluate import tell_left_out
    from rince.sources import Source

    if isinstance(samples, str | Path):
        given_itself = run.recipe.data.is_sample(str(samples))
        if given_itself and not (itself and isinstance(samples, str)):
            raise DataError(f"{str(samples)!r} does not exist; give a file or a folder")
        source = run.find(str(samples))
        if given_itself:
            say(f"taken as one {source.thing}: {shorten(str(samples), 80, placeholder=' …')!r}")
        tell_left_out(source, say)
        return source
    if isinstance(samples, Source):
        prepared: Source = run.recipe.prepared(samples)
        return prepared
    if isinstance(samples, list | tuple) and samples and all(isinstance(each, str) for each in samples):
        return run.given(samples)
    raise ConfigError(
        f"give a file, a folder, a source or a list of texts, got {type(samples).__name__}; wrap samples of yours in "
        "rince.sources.from_dataset(…)"
    )


def _embedded(run: TrainedRun, samples: Samples, which: Which, say: Say) -> Source | None:
    """What `embed` made of samples before; None if they are the samples themselves."""
    from rince.evaluation.embedded_file import find_embedded

    found = find_embedded(run, samples, which)
    if found is not None:
        say(f"{samples}: {len(found):,} vectors, taken as the {which} that `rince embed` wrote")
    return found


def _opened(run: TrainedRun, samples: Samples, split: str | None, say: Say, *, itself: bool = False) -> Source:
    """The same, or a split of labelled data."""
    from rince.evaluation.evaluate import open_split, tell_left_out

    if split is None:
        return _found(run, samples, say, itself=itself)
    if isinstance(samples, str | Path):
        source = open_split(run, str(samples), split)
        tell_left_out(source, say)
        return source
    raise ConfigError("split=… is of a place, and the samples are given as an object; leave it out")


def _check_parquet(out: str | Path, what: str) -> None:
    """Refuses, before any work is done, a file that cannot be written."""
    from rince.files import check_place

    if Path(out).suffix != ".parquet":
        raise ConfigError(f"{what} written as parquet: let --out end in .parquet, got {out}")
    check_place(Path(out), in_new_folder=True)


def _checked(brought: Brought) -> Brought:
    """Refuses objects that are not what they are given as."""
    from torch import nn

    from rince.sources import Source
    from rince.train.setup import check_rank_source

    for name, value in (("source", brought.source), ("test_source", brought.test_source)):
        if value is not None and not isinstance(value, Source):
            raise ConfigError(
                f"{name} must be a source{' or a path' if name == 'source' else ''}, got {type(value).__name__}; wrap "
                "a data set of yours in rince.sources.from_dataset(…)"
            )
    if brought.encoder is not None and not isinstance(brought.encoder, nn.Module):
        raise ConfigError(f"encoder must be a torch.nn.Module, got {type(brought.encoder).__name__}")
    ranks = brought.rank_source
    if ranks is not None:
        check_rank_source(ranks, "rank_source")
    return brought


def _sections_of(brought: Brought, values: dict[str, Any]) -> dict[str, Any]:
    """What the recipe of a run says of parts that are given as objects. It is no longer a row of the paper."""
    named: dict[str, Any] = {}
    if brought.source is not None:
        data = values.get("data") or {}
        kept = {key: data[key] for key in ("workers", "validation") if key in data}
        taxonomy = "column" if _has_paths(brought.source) else "none"
        named["data"] = {"kind": "given", "source": brought.source.source, "taxonomy": taxonomy, **kept}
        named["views"] = {}
        if "kind" not in (values.get("model") or {}) and brought.encoder is None and len(brought.source.shape) == 1:
            named["model"] = {"kind": "adapter"}
    if brought.encoder is not None:
        model = values.get("model") or {}
        kept = {key: model[key] for key in ("head_hidden", "dim", "compile", "start_from") if key in model}
        named["model"] = {"kind": "given", "about": type(brought.encoder).__name__, **kept}
    if brought.rank_source is not None:
        own = list(getattr(brought.rank_source, "own_ranks", (1,)))
        named["ranks"] = {"kind": "given", "about": type(brought.rank_source).__name__, "own": own}
    return named | {"paper": None} if named else named


def _has_paths(source: Source) -> bool:
    try:
        source.own_paths("column")
    except DataError:
        return False
    return True
