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
from rince.terminal import Say, nobody

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rince.config import Recipe
    from rince.evaluation.lookup import Found, Which
    from rince.evaluation.trained import TrainedRun
    from rince.ranks import RankSource
    from rince.sources import Source
    from rince.train.setup import Brought

    Samples = str | Path | Source


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
    chosen = validate(values, str(name))
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
) -> Run:
    """Opens a run again; what it was given as objects has to be given again.

    Args:
        folder: of the run.
        source: of its training samples, if that was an object.
        test_source: what to judge it on, likewise.
        encoder: its network, likewise; the run's weights are loaded into it.
        rank_source: its ranks, likewise.
    """
    from rince.train.record import recipe_of
    from rince.train.setup import Brought

    return Run(Path(folder), recipe_of(Path(folder)), _checked(Brought(source, test_source, encoder, rank_source)))


class Run:
    """A training run in its folder: made by `fit`, opened again by `open_run`.

    Attributes:
        folder: of the run.
        recipe: of the run.
    """

    def __init__(self, folder: Path, recipe: Recipe, brought: Brought) -> None:
        self.folder, self.recipe, self._brought = folder, recipe, brought

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, recipe={self.recipe.name!r})"

    @property
    def log(self) -> list[dict[str, Any]]:
        """What training logged, a dict for every logged step."""
        from rince.train.record import METRICS

        path = self.folder / METRICS
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

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
        accelerator: str = "auto",
        **options: Any,
    ) -> dict[str, float]:
        """Judges the run and keeps what it finds, see `results`.

        Args:
            outliers: data whose samples are of no class of the run: one or several, each a place or a source.
            on: data of the same kind to judge it on, one or several, instead of its own.
            accelerator: where to do it.
            options: `probe`, `split`, `finetune`, `checkpoint`, `unfinished` as of `rince evaluate`.

        Returns:
            The numbers by name.
        """
        from rince.evaluation.evaluate import evaluate
        from rince.terminal import shown_progress

        with shown_progress(str(self.folder)) as tell:
            verdict = evaluate(
                self.folder,
                outliers=_several(outliers),
                on=_places(on),
                brought=self._brought,
                accelerator=accelerator,
                tell=tell,
                **options,
            )
        return verdict.metrics

    @property
    def place(self) -> Which:
        """Where its vectors are taken if nobody says: what was better on validation, else `"features"`."""
        from rince.train.validation import recorded

        place: Which = recorded(self.folder).get("place", "features")
        return place

    def trained(self, accelerator: str = "auto") -> TrainedRun:
        """The run with its encoder, in the state of its last checkpoint."""
        from rince.evaluation.trained import open_trained

        return open_trained(self.folder, self._brought, accelerator=accelerator)

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
            samples: a file, a folder, or a source; of a run on texts also a text.
            which: `"features"` before the head, or `"embeddings"` after it; by default `place`.
            split: of a place that holds labelled data, which is read as the run's own data is; without it, whatever
                samples are there.
            out: also write them to this parquet file, with a row for each: path, vector and, where there are labels,
                the label and every level above, so that it can be trained and judged on.
            accelerator: where to do it.
            say: is told if `samples` is no file, but a text.
        """
        from rince.evaluation.evaluate import levels_of, open_split
        from rince.evaluation.lookup import vectors_of, write_vectors
        from rince.files import check_place
        from rince.terminal import shown_progress

        if out is not None and Path(out).suffix != ".parquet":
            raise ConfigError(f"embeddings are written as parquet: let --out end in .parquet, got {out}")
        if out is not None:
            check_place(Path(out))
        which = self.place if which is None else which
        run = self.trained(accelerator)
        if split is None:
            source = _found(run, samples, say)
        elif isinstance(samples, str | Path):
            source = open_split(run, str(samples), split)
        else:
            raise ConfigError("split=… is of a place, and the samples are given as an object; leave it out")
        with shown_progress(source.source) as tell:
            vectors = vectors_of(run, source, which, lambda done, of: tell(which, done, of))
        if out is not None:
            write_vectors(source, vectors, levels_of(run, source), Path(out))
        return vectors.cpu()

    def neighbours(
        self,
        query: Samples,
        gallery: Samples,
        *,
        k: int = 5,
        which: Which | None = None,
        picture: str | Path | None = None,
        accelerator: str = "auto",
        say: Say = nobody,
    ) -> list[Found]:
        """For every query the k nearest samples of a gallery by cosine; never the query itself.

        Args:
            query: a file, a folder, or a source; of a run on texts also a text.
            gallery: a file, a folder, or a source.
            k: how many.
            which: `"features"` before the head, or `"embeddings"` after it; by default `place`.
            picture: also draw them into this PNG file.
            accelerator: where to do it.
            say: is told if queries lie in the gallery, too, and if the query is no file, but a text.
        """
        from rince.evaluation.lookup import draw_neighbours, find_neighbours
        from rince.files import check_place
        from rince.terminal import shown_progress

        if picture is not None:
            check_place(Path(picture))
        which = self.place if which is None else which
        run = self.trained(accelerator)
        queries, items = _found(run, query, say), _found(run, gallery)
        with shown_progress(queries.source) as tell:
            done = partial(tell, which)
            found = find_neighbours(run, queries, items, k=k, which=which, tell=done, say=say)
        if picture is not None:
            draw_neighbours(found, queries, items, Path(picture))
        return found

    def export(self, folder: str | Path, *, say: Say = nobody) -> list[Path]:
        """Writes the encoder for other programs: safetensors weights, an ONNX graph, and what its input looks like.

        Of texts also the tokeniser's files, and a folder that `SentenceTransformer` opens.

        Args:
            folder: to write to; new or empty.
            say: is told what could not be written.
        """
        from rince.evaluation.export import export

        return export(self.trained("cpu"), Path(folder), say=say)

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


def _found(run: TrainedRun, samples: Samples, say: Say | None = None) -> Source:
    """Samples that a person gives; `say` is told of one that is given itself, without it that is a missing file."""
    from rince.sources import Source

    if isinstance(samples, str | Path):
        given_itself = run.recipe.data.is_sample(str(samples))
        if given_itself and (say is None or isinstance(samples, Path)):
            raise DataError(f"{str(samples)!r} does not exist; give a file or a folder")
        source = run.find(str(samples))
        if given_itself and say is not None:
            say(f"taken as one {source.thing}: {shorten(str(samples), 80, placeholder=' …')!r}")
        return source
    if not isinstance(samples, Source):
        raise ConfigError(
            f"give a file, a folder or a source, got {type(samples).__name__}; wrap samples of yours in "
            "rince.sources.from_dataset(…)"
        )
    return samples


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
