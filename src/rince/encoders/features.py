"""What a frozen network makes of samples: computed once, kept in the cache, and trained on as vectors.

A kept feature is found by its fingerprint: the network's weights by content with its preprocessing, and the samples by
content. Features are written in parts as they are made, so that what was interrupted goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from rince.devices import best_device
from rince.draws import FIXED_VIEW, uniform
from rince.encoders.adapter import statistics
from rince.encoders.encoder import shapes_of
from rince.errors import ConfigError, DataError, WriteError
from rince.files import cache_folder, check_space, fingerprint_of, megabytes, write_whole
from rince.seals import read_tensors, sealed_tensors
from rince.sources.feed import made_ahead
from rince.sources.source import Batch, InMemory, Source, Wrapped, moved
from rince.terminal import duration, mention, shown_progress
from rince.views.vectors import VectorViewSettings

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from rince.encoders.pretrained import Network

PART = 2048  # samples of a file
TRIED = 32  # samples that tell how long all of them take
ELSEWHERE = "Free some space, or set XDG_CACHE_HOME to a place for what can be made again"
MADE_BY = 1  # part of every fingerprint: to be raised when the same network gives other features


class FeatureSettings(VectorViewSettings):
    """The section `model.features`: views of features, where a frozen network makes them."""

    views: Annotated[int, Field(ge=0)] = Field(
        0,
        description="fixed random views of every sample that features are made of besides the plain one, and that "
        "training draws from; 0: training sees the plain one",
    )


class Features(Wrapped, InMemory):
    """Features of samples, in memory.

    Args:
        inner: the samples, as the network takes them.
        network: which is frozen.
        maker: how features vary from view to view.
        seed: of the fixed views.
        standardise: whether noise and dropout are of standardised coordinates, as the adapter sees them.
        seen: what the network's input depends on besides the samples.
        drawn: what it depends on in fixed views besides that.
        measured: `(samples,)` those that coordinates are standardised by; all if None.
    """

    def __init__(
        self,
        inner: Source,
        network: Network,
        maker: FeatureSettings,
        *,
        seed: int,
        standardise: bool,
        seen: dict[str, Any],
        drawn: dict[str, Any],
        measured: Tensor | None = None,
    ) -> None:
        super().__init__(inner)
        self.network, self.maker, self.seed, self.standardise = network, maker, seed, standardise
        self.seen, self.drawn, self.measured = seen, drawn, measured

    @property
    def shape(self) -> tuple[int, ...]:
        """The width of a feature."""
        return (self.network.width,)

    @cached_property
    def fingerprint(self) -> str:
        """Of network, samples and fixed views."""
        made_from = [self._made_from(view) for view in range(1 + self.maker.views)]
        return made_from[0] if len(made_from) == 1 else fingerprint_of(views=made_from)

    @property
    def plain_fingerprint(self) -> str:
        """The same of the plain view alone, which is all that judging needs."""
        return self._made_from(0)

    def _made_from(self, view: int) -> str:
        """Fingerprint of what the features of a view are made from; 0 is the plain one."""
        fixed = {"view": view, "seed": self.seed, "drawn": self.drawn} if view else {}
        return fingerprint_of(
            made_by=MADE_BY, network=self.network.identity, samples=self.inner.fingerprint, seen=self.seen, **fixed
        )

    @cached_property
    def values(self) -> Tensor:
        """`(samples, width)` float32, of the plain view."""
        return self._features(0)

    @cached_property
    def rows(self) -> Tensor:
        """What training draws from: the plain view, or `(samples, fixed views, width)`."""
        if not self.maker.views:
            return self.values
        return torch.stack([self._features(view) for view in range(1, 1 + self.maker.views)], dim=1)

    def _features(self, view: int) -> Tensor:
        """`(samples, width)` of a view, from its files or made now."""
        found = torch.empty(len(self), self.network.width)
        with shown_progress(self.source) as tell:
            if not self.knows_content:  # nobody can tell whether kept features are those of these samples
                for number, part in enumerate(self._parts()):
                    found[part] = self._make(part, view, tell, done=number * PART)
                return found
            folder = self._folder(view)
            with alone(folder):
                self._check_space(folder)
                for number, part in enumerate(self._parts()):
                    path = folder / _part_name(number)
                    kept = read_features(path, (len(part), self.network.width))
                    if kept is None:
                        kept = self._make(part, view, tell, done=number * PART)
                        self._write(path, kept)
                    found[part] = kept
        return found

    def _check_space(self, folder: Path) -> None:
        """Before any of them is made, that all that are left in a folder will have room."""
        left = sum(len(part) for i, part in enumerate(self._parts()) if not (folder / _part_name(i)).exists())
        try:
            check_space(folder, 4 * left * self.network.width, f"to keep features of {left:,} {self.thing}s")
        except WriteError as error:
            raise DataError(f"{error}: set XDG_CACHE_HOME") from None

    def _write(self, path: Path, features: Tensor) -> None:
        try:
            write_features(path, features, self.network.about)
        except WriteError as error:
            raise DataError(f"{error}; features take {megabytes(self._bytes())}. {ELSEWHERE}") from None

    def _folder(self, view: int) -> Path:
        try:
            return cache_folder("features") / self._made_from(view)[:32]
        except OSError as error:
            raise _unwritable("for features", error) from None

    def _order(self) -> Tensor:
        """Samples as the network gets them: texts of like length together, so that little is padded."""
        lengths = getattr(self.inner, "lengths", None)
        return torch.arange(len(self)) if lengths is None else lengths.argsort(stable=True)

    def _parts(self) -> tuple[Tensor, ...]:
        return torch.split(self._order(), PART)

    def _make(self, rows: Tensor, view: int, tell: Any, *, done: int = 0) -> Tensor:
        """Features of a view of some samples, `(rows, width)`."""
        device = best_device()
        self.network.module.to(device).eval()
        found = []
        blocks = rows.split(self.network.at_once)
        workers = 0 if self.inner.in_memory else torch.get_num_threads()
        batches = made_ahead(lambda ids: self._batch(ids, view), blocks, workers)
        with torch.inference_mode():
            for block, batch in zip(blocks, batches, strict=True):
                made = self._through(moved(batch, device))
                if len(made) > len(block):  # of several copies, the mean
                    made = made.view(len(block), self.inner.copies, -1).mean(dim=1)
                found.append(made.float().cpu())
                done += len(block)
                tell("features", done, len(self))
        return torch.cat(found)

    def _batch(self, ids: Tensor, view: int) -> Batch:
        """What the network gets: the plain view, or one of the fixed ones."""
        if view == 0:
            return self.inner.plain(ids)
        loaded = self.inner.load(ids, [view - 1], seed=self.seed, epoch=0)
        return self.inner.finish(loaded, torch.device("cpu")).views[0]

    def _through(self, batch: Batch) -> Tensor:
        """What the network makes of a batch; whatever is wrong with that becomes one clear error."""
        network = self.network
        try:
            features: Any = network.module(batch)
        except (RuntimeError, ValueError, TypeError, IndexError, KeyError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ConfigError(
                f"{network.about} cannot take {shapes_of(batch)} ({reason[:200]}); are {self.thing}s what it is for, "
                "and of the size that it is for?"
            ) from None
        if not isinstance(features, Tensor) or features.ndim != 2 or features.shape[1] != network.width:
            got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise ConfigError(f"{network.about} must give a matrix (batch, {network.width}), and gives {got}")
        if not bool(features.isfinite().all()):
            raise DataError(f"{network.about} gives NaN or infinity for some samples; are its weights whole?")
        return features

    @cached_property
    def _statistics(self) -> tuple[Tensor, Tensor]:
        return statistics(self.values if self.measured is None else self.values[self.measured])

    def view(self, rows: Tensor, *, seed: int, epoch: int, view: int, sample_ids: Tensor) -> Tensor:
        """One of the fixed views, with noise and dropout."""
        if self.maker.views:
            drawn = uniform(seed, epoch, FIXED_VIEW + view, sample_ids, 1)[:, 0]
            chosen = (drawn * self.maker.views).long().clamp(max=self.maker.views - 1)
            rows = rows[torch.arange(len(rows), device=rows.device), chosen]
        drawing = {"seed": seed, "epoch": epoch, "view": view, "sample_ids": sample_ids}
        if not self.standardise or self.maker.changes_nothing:
            return self.maker.make(rows, **drawing)  # type: ignore[arg-type]
        mean, spread = (each.to(rows.device) for each in self._statistics)
        return self.maker.make((rows - mean) / spread, **drawing) * spread + mean  # type: ignore[arg-type]

    def plain(self, ids: Tensor) -> Tensor:
        """The feature of the plain view."""
        return self.values[ids]

    def ahead(self) -> list[str]:
        """What features cost, from a few of them; where they are if they are in the cache."""
        number, views = f"{len(self):,} {self.thing}s", 1 + self.maker.views
        of_views = f" in {views} views" if views > 1 else ""
        what = f"{number}{of_views} through {self.network.about}, frozen ({self.network.parameters:,} weights)"
        left, kept = self._left(), "in memory alone, since nobody can tell what is in them"
        if self.knows_content:
            kept = f"in {self._folder(0).parent}"
        if left == 0:
            return [f"features   {what}: kept from before {kept}"]
        some = self._order()[:: max(1, len(self) // TRIED)][:TRIED]  # of all lengths
        took = []
        for _ in range(2):  # what meets a batch of this size for the first time takes up to ten times as long
            began = time.perf_counter()
            self._make(some, 0, lambda *_: None)
            took.append(time.perf_counter() - began)
        each = min(took) / len(some)
        rest = "" if left == len(self) * views else f", {left:,} of them left"
        return [
            f"features   {what}",
            f"           once{rest}: about {duration(each * left)} ({1000 * each:.1f} ms each, of {len(some)}), then "
            f"{self._bytes() / 2**20:,.1f} MB {kept}",
        ]

    def make(self, process: int, processes: int) -> None:
        """The share of a process of the plain view's parts, where others can find them."""
        if not self.knows_content:
            return
        folder = self._folder(0)
        folder.mkdir(parents=True, exist_ok=True)
        with shown_progress(self.source) as tell:
            for number, part in list(enumerate(self._parts()))[process::processes]:
                path = folder / _part_name(number)
                if read_features(path, (len(part), self.network.width)) is None:
                    self._write(path, self._make(part, 0, tell, done=number * PART))

    def pretend(self) -> None:
        """Normal numbers for features that are not kept: a step takes as long with them."""
        if self._left():
            self.values = torch.randn(len(self), self.network.width)
            if self.maker.views:
                self.rows = self.values[:, None].expand(-1, self.maker.views, -1)

    def _left(self) -> int:
        """Views of samples that are not in the cache."""
        if not self.knows_content:
            return len(self) * (1 + self.maker.views)
        folders = [self._folder(view) for view in range(1 + self.maker.views)]
        parts = list(enumerate(self._parts()))
        return sum(len(part) for folder in folders for i, part in parts if not (folder / _part_name(i)).exists())

    def _bytes(self) -> int:
        return 4 * len(self) * (1 + self.maker.views) * self.network.width


def _part_name(number: int) -> str:
    return f"{number:05}.safetensors"


def write_features(path: Path, features: Tensor, made_by: str) -> None:
    """Keeps features, with a note of what made them; raises WriteError."""
    write_whole(path, sealed_tensors({"features": features}, {"of": made_by}))


def read_features(path: Path, shape: tuple[int, ...]) -> Tensor | None:
    """Features that were kept; None if there are none, or not these: to be made again."""
    try:
        found = read_tensors(path).tensors["features"]
    except (OSError, KeyError):
        return None
    except DataError as error:
        mention(f"{error}; it is made again")
        return None
    return found if found.shape == shape and found.dtype == torch.float32 else None


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Others that want the same features wait, and find them made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "lock").open("w")
    except OSError as error:
        raise _unwritable(folder, error) from None
    with file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _unwritable(folder: Path | str, error: OSError) -> DataError:
    return DataError(f"the cache {folder} cannot be written ({error.strerror}). {ELSEWHERE}")
