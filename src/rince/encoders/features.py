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
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from rince.devices import best_device
from rince.draws import FIXED_VIEW, uniform
from rince.encoders.adapter import statistics
from rince.errors import ConfigError, DataError
from rince.files import cache_folder, fingerprint_of, write_whole
from rince.sources.feed import made_ahead
from rince.sources.source import Batch, InMemory, Source, Wrapped, moved
from rince.terminal import shown_progress
from rince.views.vectors import VectorViewSettings

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from rince.encoders.pretrained import Network

PART = 2048  # samples of a file
TRIED = 32  # samples that tell how long all of them take
MADE_BY = 1  # part of every fingerprint: to be raised when the same network gives other features


class FeatureSettings(VectorViewSettings):
    """The section `model.features`: views of features, where a frozen network makes them."""

    views: Annotated[int, Field(ge=0)] = Field(
        0,
        description="fixed random views of every sample that features are made of besides the plain one, and that "
        "training draws from; 0: the plain one alone",
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
    ) -> None:
        super().__init__(inner)
        self.network, self.maker, self.seed, self.standardise, self.seen = network, maker, seed, standardise, seen

    @property
    def shape(self) -> tuple[int, ...]:
        """The width of a feature."""
        return (self.network.width,)

    @cached_property
    def fingerprint(self) -> str:
        """Of network, samples and fixed views."""
        views = {"views": self.maker.views, "seed": self.seed} if self.maker.views else {}
        return fingerprint_of(
            made_by=MADE_BY, network=self.network.identity, samples=self.inner.fingerprint, seen=self.seen, **views
        )

    @cached_property
    def values(self) -> Tensor:
        """`(samples, 1 + fixed views, width)` float32; the first is the plain view."""
        if not self.knows_content:  # nobody can tell whether kept features are those of these samples
            with _shown(self) as tell:
                return torch.cat([self._make(part, tell) for part in self._parts()])[self._places()]
        folder = cache_folder("features") / self.fingerprint[:32]
        with _alone(folder):
            return torch.cat(list(self._kept(folder)))[self._places()]

    def _order(self) -> Tensor:
        """Samples as the network gets them: texts of like length together, so that little is padded."""
        lengths = getattr(self.inner, "lengths", None)
        return torch.arange(len(self)) if lengths is None else lengths.argsort(stable=True)

    def _parts(self) -> tuple[Tensor, ...]:
        return torch.split(self._order(), PART)

    def _places(self) -> Tensor:
        """Where each sample stands in the order."""
        return self._order().argsort()

    def _kept(self, folder: Path) -> Iterator[Tensor]:
        """Every part, from its file or made now."""
        shape = (1 + self.maker.views, self.network.width)
        with _shown(self) as tell:
            for number, part in enumerate(self._parts()):
                path = folder / f"{number:05}.safetensors"
                found = _read(path, (len(part), *shape))
                if found is None:
                    found = self._make(part, tell, done=number * PART)
                    try:
                        write_whole(path, save({"features": found.contiguous()}, metadata={"of": self.network.about}))
                    except OSError as error:
                        raise DataError(
                            f"the cache {folder} cannot be written ({error.strerror}); {self._bytes() / 2**20:,.0f} MB "
                            "are needed; free some space, or set XDG_CACHE_HOME"
                        ) from None
                yield found

    def _make(self, rows: Tensor, tell: Any, *, done: int = 0) -> Tensor:
        """Features of some samples, `(rows, 1 + fixed views, width)`."""
        device, module = best_device(), self.network.module
        module.to(device).eval()
        found = []
        blocks = rows.split(self.network.at_once)
        workers = 0 if self.inner.in_memory else torch.get_num_threads()
        with torch.inference_mode():
            for block, batches in zip(blocks, made_ahead(self._batches, blocks, workers), strict=True):
                made = [_checked(module(moved(batch, device)), self.network) for batch in batches]
                copies = self.inner.copies
                plain = made[0].view(len(block), copies, -1).mean(dim=1) if copies > 1 else made[0]
                found.append(torch.stack([plain, *made[1:]], dim=1).float().cpu())
                done += len(block)
                tell("features", done, len(self))
        return torch.cat(found)

    def _batches(self, ids: Tensor) -> list[Batch]:
        """The plain view, and the fixed ones."""
        plain = self.inner.plain(ids)
        if not self.maker.views:
            return [plain]
        numbers = range(self.maker.views)
        loaded = self.inner.load(ids, numbers, seed=self.seed, epoch=0)
        return [plain, *self.inner.finish(loaded, torch.device("cpu")).views]

    @property
    def rows(self) -> Tensor:
        """All features."""
        return self.values

    @cached_property
    def _statistics(self) -> tuple[Tensor, Tensor]:
        return statistics(self.values[:, 0])

    def view(self, rows: Tensor, *, seed: int, epoch: int, view: int, sample_ids: Tensor) -> Tensor:
        """One of the fixed views, with noise and dropout."""
        if self.maker.views:
            drawn = uniform(seed, epoch, FIXED_VIEW + view, sample_ids, 1)[:, 0]
            chosen = 1 + (drawn * self.maker.views).long().clamp(max=self.maker.views - 1)
            rows = rows[torch.arange(len(rows), device=rows.device), chosen]
        else:
            rows = rows[:, 0]
        drawing = {"seed": seed, "epoch": epoch, "view": view, "sample_ids": sample_ids}
        if not self.standardise:
            return self.maker.make(rows, **drawing)  # type: ignore[arg-type]
        mean, spread = (each.to(rows.device) for each in self._statistics)
        return self.maker.make((rows - mean) / spread, **drawing) * spread + mean  # type: ignore[arg-type]

    def plain(self, ids: Tensor) -> Tensor:
        """The feature of the plain view."""
        return self.values[ids, 0]

    def ahead(self) -> list[str]:
        """What features cost, from a few of them; nothing if they are in the cache."""
        what = f"{len(self):,} {self.thing}s through {self.network.about}, frozen ({self.network.parameters:,} weights)"
        folder = cache_folder("features") / self.fingerprint[:32]
        if self.knows_content and all((folder / f"{i:05}.safetensors").exists() for i in range(len(self._parts()))):
            return [f"features   {what}: kept from before in {folder}"]
        some = self._order()[:: max(1, len(self) // TRIED)][:TRIED]  # of all lengths
        self._make(some[:1], lambda *_: None)
        began = time.perf_counter()
        self._make(some, lambda *_: None)
        each = (time.perf_counter() - began) / len(some)
        return [
            f"features   {what}",
            f"           once, about {_duration(each * len(self))} ({1000 * each:.1f} ms each, from {len(some)}); then "
            f"{self._bytes() / 2**20:,.0f} MB in {folder}",
        ]

    def _bytes(self) -> int:
        return 4 * len(self) * (1 + self.maker.views) * self.network.width


def _read(path: Path, shape: tuple[int, ...]) -> Tensor | None:
    try:
        found = load_file(path)["features"]
    except (OSError, SafetensorError, KeyError):
        return None  # not there, or damaged: to be made again
    return found if found.shape == shape else None


def _checked(features: Any, network: Network) -> Tensor:
    if not isinstance(features, Tensor) or features.ndim != 2 or features.shape[1] != network.width:
        got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ConfigError(f"{network.about} must give a matrix (batch, {network.width}), and gives {got}")
    if not bool(features.isfinite().all()):
        raise DataError(f"{network.about} gives NaN or infinity for some samples; are its weights whole?")
    return features


@contextmanager
def _shown(features: Features) -> Iterator[Any]:
    with shown_progress(features.source) as tell:
        yield tell


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Others that want the same features wait, and find them made."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
