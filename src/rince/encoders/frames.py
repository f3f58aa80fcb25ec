"""Videos through a frozen network for images: its features of single frames, and a small network over time on top.

Every few frames of a video go through the network once: plain, and in a few fixed versions, each under one crop, flip
and colour from its first frame to its last. What comes out is kept in the cache, a file for every video and version,
found by content. A clip is then a sequence of features, drawn as clips of pixels are.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from rince.config import ModelSettings
from rince.draws import FIXED_VIEW, uniform
from rince.encoders.adapter import Standardised, statistics
from rince.encoders.efficientnet_lite import EfficientNetLiteModel
from rince.encoders.encoder import Encoder
from rince.encoders.features import alone, read_features, write_features
from rince.encoders.pretrained import Network
from rince.errors import ConfigError
from rince.files import cache_folder, fingerprint_of
from rince.sources.clips import CLIP_OF_VIEW, cropped
from rince.sources.part import Part
from rince.sources.source import Made, Source, Wanted, Wrapped
from rince.sources.video_file import read_frames
from rince.sources.videos import Videos
from rince.terminal import shown_progress

PLAIN = 0  # the version that testing sees; the others count from 1
MADE_BY = 1  # part of every fingerprint: to be raised when the same frames give other features
AT_ONCE = 8  # frames through the network: on one core half the time of 32, whose maps leave the cache
SEED = 0  # of the fixed versions, the same for all runs: they are made once


class FramesModel(ModelSettings):
    """`model.kind=frames`: clips as features of their frames, EfficientNet-Lite0 frozen, and a network over time."""

    kind: Literal["frames"]
    hidden: PositiveInt = Field(256, description="channels of the convolution over time")
    versions: Annotated[int, Field(ge=2)] = Field(
        3, description="fixed augmented versions of every video; a key is of another one than its query"
    )

    @property
    def network(self) -> Network:
        """What frames go through."""
        return EfficientNetLiteModel(kind="efficientnet-lite").network

    @property
    def identity(self) -> str:
        """Of the network: a run must not be looked at with other weights than it was trained on."""
        return self.network.identity

    def fit_views(self, views: Any) -> Any:
        """Size, mean and std filled in."""
        return EfficientNetLiteModel(kind="efficientnet-lite").fit_views(views)

    def prepare(self, source: Source, views: Any, *, facts: dict[str, Any], seed: int) -> Source:  # noqa: ARG002
        """Features of the frames."""
        whole = source.whole if isinstance(source, Part) else source
        if not isinstance(whole, Videos):
            raise ConfigError(
                f"model.kind=frames takes videos, and {source.source!r} holds {source.thing}s; choose another "
                "model.kind"
            )
        made = FrameFeatures(
            whole, self.network, versions=self.versions, seen=facts, drawn=views.model_dump(mode="json")
        )
        return Part(made, source.part_rows, source.set_aside) if isinstance(source, Part) else made

    def whole(self, encoder: Encoder) -> Encoder:
        """From clips of pixels to embeddings: every frame through a copy of the network, then time."""
        assert isinstance(encoder.backbone, OverTime)
        return Encoder(FrameByFrame(copy.deepcopy(self.network.module), encoder.backbone), encoder.head)

    def build(self, shape: Sequence[int]) -> OverTime:
        """For sequences `(width, frames)`."""
        if len(shape) != 2:
            raise ConfigError(f"model.kind=frames takes videos, and a sample here has the shape {tuple(shape)}")
        return OverTime(shape[0], self.hidden)


class FrameFeatures(Wrapped):
    """Clips as features of their frames, in memory.

    Of a video every `stride`-th frame has features, from its first on, and a frame of a clip is the nearest before it.

    Args:
        inner: the videos.
        network: for images, frozen.
        versions: augmented ones of every video.
        seen: what the network's input depends on besides the samples.
        drawn: what it depends on in augmented versions besides that.
    """

    in_memory: ClassVar[bool] = True
    inner: Videos

    def __init__(
        self, inner: Videos, network: Network, *, versions: int, seen: dict[str, Any], drawn: dict[str, Any]
    ) -> None:
        super().__init__(inner)
        self.network, self.versions, self.seen, self.drawn = network, versions, seen, drawn
        self.copies = inner.copies
        self.grid = inner.sampler.stride

    @property
    def shape(self) -> tuple[int, ...]:
        """Width of a feature, and frames of a clip."""
        return self.network.width, self.inner.sampler.frames

    @cached_property
    def fingerprint(self) -> str:
        """Of network, samples and versions."""
        return fingerprint_of(
            samples=self.inner.fingerprint, made=[self._made_from(v) for v in range(1 + self.versions)]
        )

    def _made_from(self, version: int) -> str:
        """Fingerprint of what features of a version are made from besides the video."""
        fixed = {"version": version, "drawn": self.drawn} if version else {}
        facts = {"grid": self.grid, "short_side": self.inner.index.short_side, "seen": self.seen, **fixed}
        return fingerprint_of(made_by=MADE_BY, network=self.network.identity, frames=facts)

    @cached_property
    def plain_rows(self) -> list[Tensor]:
        """Of every video `(frames, width)` float32, plain."""
        return self._rows([PLAIN])[0]

    @cached_property
    def augmented_rows(self) -> list[list[Tensor]]:
        """The same of every augmented version."""
        return self._rows(range(1, 1 + self.versions))

    def _rows(self, versions: Sequence[int]) -> list[list[Tensor]]:
        """For every version and video `(frames, width)`, from their files or made now."""
        found: list[list[Tensor]] = [[] for _ in versions]
        folders = [cache_folder("features") / self._made_from(version)[:32] for version in versions]
        with shown_progress(self.source) as tell, ExitStack() as locks:
            for folder in folders:
                locks.enter_context(alone(folder))
            for video, content in enumerate(self.inner.contents):
                wanted = np.arange(0, self.inner.index.tracks[video].frames, self.grid)
                files = [folder / f"{content[:32]}.safetensors" for folder in folders]
                kept = [read_features(file, (len(wanted), self.network.width)) for file in files]
                absent = [version for version, rows in zip(versions, kept, strict=True) if rows is None]
                made = iter(self._make(video, wanted, absent) if absent else ())
                for place, (file, rows) in enumerate(zip(files, kept, strict=True)):
                    found[place].append(self._kept(file, next(made)) if rows is None else rows)
                tell("frames", video + 1, len(self))
        return found

    def _kept(self, file: Path, rows: Tensor) -> Tensor:
        write_features(file, rows, self.network.about)
        return rows

    @torch.inference_mode()
    def _make(
        self, video: int, wanted: np.ndarray[tuple[int], np.dtype[np.int64]], versions: list[int]
    ) -> list[Tensor]:
        """For every version `(frames, width)` of a video, which is decoded once."""
        index, maker = self.inner.index, self.inner.maker
        pixels = read_frames(
            index.videos.paths[video], index.tracks[video], wanted.tolist(), short_side=index.short_side
        )
        found = []
        for version in versions:
            if version == PLAIN:
                frames = maker.resize_and_normalise(torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous())
            else:
                sides = [torch.tensor([side]) for side in pixels.shape[1:3]]
                name = torch.tensor([int(self.inner.contents[video][:15], 16)])  # the same in any split
                drawn = maker.draw_parameters(*sides, seed=SEED, epoch=0, view=version - 1, sample_ids=name)
                crop = cropped(pixels, drawn.boxes[0].tolist(), maker.size)[None].contiguous()
                frames = maker.apply_cropped(crop, drawn, torch.device("cpu"))[0].transpose(0, 1)
            module = self.network.module.cpu().eval()
            through = [module(each.contiguous()) for each in frames.split(AT_ONCE)]
            found.append(torch.cat(through).float().clone())
        return found

    def plain_alone(self) -> FrameFeatures:
        """The same with the plain version in place of the augmented ones: what differs between clips is time alone."""
        alike = copy.copy(self)
        alike.__dict__["augmented_rows"] = [self.plain_rows] * self.versions
        return alike

    def load(self, ids: Tensor, numbers: Sequence[int], *, seed: int, epoch: int) -> Wanted:
        """Nothing but what is asked for."""
        return Wanted(ids, tuple(numbers), seed, epoch)

    def finish(self, loaded: Wanted, device: torch.device) -> Made:
        """Sequences `(batch, width, frames)` on the device; those of a positive that a short video lacks are zeros."""
        ids, index = loaded.ids, self.inner.index
        rows = ids.tolist()
        lengths = [index.tracks[row].frames for row in rows]
        places = self.inner.sampler.draw(
            loaded.seed, loaded.epoch, ids, lengths, [index.ranges_of(row) for row in rows]
        )
        drawn = [uniform(loaded.seed, loaded.epoch, FIXED_VIEW + n, ids, 1)[:, 0] for n in (0, *loaded.numbers)]
        of_query = (drawn[0] * self.versions).long().clamp(max=self.versions - 1)
        views, present = [], []
        for number, draw in zip(loaded.numbers, drawn[1:], strict=True):
            others = 1 + (draw * (self.versions - 1)).long().clamp(max=self.versions - 2)
            chosen = of_query if number == 0 else (of_query + others) % self.versions
            clips = places[:, CLIP_OF_VIEW[number]]
            there = clips[:, 0] >= 0
            sequences = torch.stack(
                [
                    self.augmented_rows[version][row][clip.clamp(min=0) // self.grid]
                    for version, row, clip in zip(chosen.tolist(), rows, clips, strict=True)
                ]
            )
            views.append((sequences * there[:, None, None]).transpose(1, 2).to(device))
            present.append(there)
        return Made(list(views), torch.stack(present, dim=1).to(device), ids=ids.to(device))

    def plain(self, ids: Tensor) -> Tensor:
        """Clips spread evenly over each video, of the plain version."""
        index, found = self.inner.index, []
        for row in ids.tolist():
            places = self.inner.sampler.test_positions(index.tracks[row].frames, self.copies, index.ranges_of(row))
            found.append(self.plain_rows[row][places // self.grid].transpose(1, 2))
        return torch.cat(found)


class OverTime(Standardised):
    """mean over time of x + W relu(conv(x)): starts at the mean of what the network says of the frames.

    Args:
        width: of a frame's feature.
        hidden: channels of the convolution, of three frames.

    Example:
        >>> clips = torch.randn(2, 8, 4)
        >>> torch.equal(OverTime(8, 16)(clips), clips.mean(dim=2))
        True
    """

    mean: Tensor
    spread: Tensor

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.feature_dim, self.standardise = width, True
        self.inner = nn.Conv1d(width, hidden, 3, padding=1)
        self.outer = nn.Linear(hidden, width)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("spread", torch.ones(width))

    def start_on(self, rows: Tensor) -> None:
        """Takes the statistics of the training sequences `(clips, width, frames)`."""
        mean, spread = statistics(rows.transpose(1, 2).flatten(0, 1))
        self.mean.copy_(mean)
        self.spread.copy_(spread)

    def forward(self, clips: Tensor) -> Tensor:
        """`(batch, width, frames)` to `(batch, width)`."""
        clips = (clips - self.mean[:, None]) / self.spread[:, None]
        changed: Tensor = clips.mean(dim=2) + self.outer(F.relu(self.inner(clips)).mean(dim=2))
        return changed


class FrameByFrame(nn.Module):
    """A frozen network for images on every frame of a clip, and a network over time.

    Args:
        network: `(batch, 3, height, width)` to features.
        over_time: `(batch, width, frames)` to features.
    """

    def __init__(self, network: nn.Module, over_time: OverTime) -> None:
        super().__init__()
        self.network, self.over_time, self.feature_dim = network, over_time, over_time.feature_dim

    def forward(self, clips: Tensor) -> Tensor:
        """`(batch, 3, frames, height, width)` to `(batch, width)`."""
        frames = self.network(clips.transpose(1, 2).flatten(0, 1)).float()
        features: Tensor = self.over_time(frames.view(len(clips), clips.shape[2], -1).transpose(1, 2))
        return features
