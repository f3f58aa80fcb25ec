"""Views: random crop, flip, colour jitter and grayscale of a whole batch at once, on the device of the images.

What is drawn is kept apart from what is done with it: `draw_parameters` computes `ViewParameters` from (seed, epoch,
view, sample ids) and `apply` turns images and parameters into a view, by a kernel of its own on the CPU
(`views.kernel`) and by tensor operations elsewhere (`views.tensors`). Both treat every sample by itself, to the last
bit: a sample gets the same pixels whatever else is in the batch.

The definitions are torchvision's, in floating point: `RandomResizedCrop`, `RandomHorizontalFlip`, `ColorJitter` under
`RandomApply`, `RandomGrayscale`, `Normalize`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from rince.config.section import Fraction, Section
from rince.devices import constant, in_float64
from rince.draws import uniform
from rince.errors import ConfigError, ShapeError
from rince.views import tensors
from rince.views.centre import resized_centre
from rince.views.tensors import IDENTITY, LUMA, ViewParameters

TRIES = 10  # to fit a crop into the image, before the central one is taken
CROP_DRAWS = 2 * TRIES + 2
DRAWS = CROP_DRAWS + 8  # flip, jitter or not, order, four factors, grayscale
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
ORDERS = tuple(itertools.permutations(range(4)))
USUAL = 32, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # size, and ImageNet's mean and std


class PixelViewSettings(Section):
    """The section `views` of data that has pixels."""

    size: PositiveInt | None = Field(None, description="pixels of a side; null: what the network was made for, else 32")
    crop_scale: tuple[Fraction, Fraction] = Field((0.2, 1.0), description="least and largest share of the area cut out")
    crop_ratio: tuple[PositiveFloat, PositiveFloat] = Field(
        (3 / 4, 4 / 3), description="least and largest width of a crop in heights"
    )
    flip: Fraction = Field(0.5, description="probability that a view is mirrored, left to right")
    jitter: tuple[Fraction, Fraction, Fraction, Annotated[float, Field(ge=0, le=0.5)]] | None = Field(
        (0.4, 0.4, 0.4, 0.1), description="brightness, contrast, saturation, hue; null for none"
    )
    jitter_probability: Fraction = Field(0.8, description="that the colours of a view are changed by jitter")
    grayscale: Fraction = Field(0.2, description="probability that a view has no colours")
    mean: list[float] | None = Field(
        None, description="of pixels, taken away; null: the network's own, else ImageNet's"
    )
    std: list[PositiveFloat] | None = Field(
        None, description="of pixels, divided by; null: the network's own, else ImageNet's"
    )

    def filled(self, size: int, mean: Sequence[float], std: Sequence[float]) -> PixelViewSettings:
        """The same with these where nothing was said."""
        said = self.model_dump(include={"size", "mean", "std"}, exclude_none=True)
        return self.model_copy(update={"size": size, "mean": list(mean), "std": list(std)} | said)

    def build(self) -> PixelViews:
        """What makes such views."""
        return PixelViews(**dict(self.filled(*USUAL)))

    def input_facts(self, sides: str) -> dict[str, Any]:
        """How testing makes pixels into what an encoder takes; `sides`: what images are resized to."""
        made = self.build()
        how = f"{sides}, centre of {made.size} cut out, from 0 to 1, (pixel - mean) / std"
        return {"pixels": how, "mean": list(made.mean), "std": list(made.std)}


class Cropped(NamedTuple):
    """Crops of the views of some samples, taken while decoding, and what the views draw besides.

    Attributes:
        crops: `(samples, views, channels, [time,] size, size)` uint8.
        parameters: of every view; their boxes are spent.
        present: `(samples, views)` bool: which crops are there; None if all.
    """

    crops: Tensor
    parameters: list[ViewParameters]
    present: Tensor | None = None

    def by_view(self, device: torch.device) -> Iterator[tuple[Tensor, ViewParameters]]:
        """Crops, sent to the device together, and parameters of one view after the other."""
        return zip(self.crops.to(device).unbind(1), self.parameters, strict=True)


class PixelViews:
    """Turns uint8 images or clips into normalised random views.

    Args:
        size: height and width of a view.
        crop_scale: smallest and largest share of the area that a crop takes.
        crop_ratio: lowest and highest width / height of a crop; its logarithm is uniform.
        flip: probability of mirroring.
        jitter: how far brightness, contrast and saturation go from 1, and the hue from 0 (in turns, at most 0.5);
            None for no jitter.
        jitter_probability: probability that a sample is jittered at all.
        grayscale: probability of losing all colour.
        mean: per channel, of pixels between 0 and 1.
        std: per channel.

    Example:
        >>> views = PixelViews(size=32, mean=[0.5, 0.5, 0.5], std=[0.25, 0.25, 0.25])
        >>> images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
        >>> query, key = (views(images, seed=0, epoch=0, view=v, sample_ids=torch.tensor([5, 6])) for v in (0, 1))
        >>> query.shape
        torch.Size([2, 3, 32, 32])
    """

    def __init__(
        self,
        *,
        size: int,
        crop_scale: tuple[float, float] = (0.2, 1.0),
        crop_ratio: tuple[float, float] = (3 / 4, 4 / 3),
        flip: float = 0.5,
        jitter: tuple[float, float, float, float] | None = (0.4, 0.4, 0.4, 0.1),
        jitter_probability: float = 0.8,
        grayscale: float = 0.2,
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        if size < 1:
            raise ConfigError(f"size must be at least one pixel, got {size}")
        for name, (low, high) in (("crop_scale", crop_scale), ("crop_ratio", crop_ratio)):
            if not 0 < low <= high:
                raise ConfigError(f"{name} must be two positive numbers, the smaller first; got {(low, high)}")
        if crop_scale[1] > 1:
            raise ConfigError(f"crop_scale is a share of the area, so at most 1; got {crop_scale}")
        for name, value in (("flip", flip), ("jitter_probability", jitter_probability), ("grayscale", grayscale)):
            if not 0 <= value <= 1:
                raise ConfigError(f"{name} is a probability, between 0 and 1; got {value}")
        if jitter is not None and (len(jitter) != 4 or min(jitter) < 0 or jitter[HUE] > 0.5):
            raise ConfigError(
                "jitter must be (brightness, contrast, saturation, hue), none negative and the hue at most 0.5; "
                f"got {jitter}"
            )
        if len(mean) != len(std) or not all(value > 0 for value in std):
            raise ConfigError(f"mean and std must hold one number per channel, std positive; got {mean} and {std}")
        self.size, self.crop_scale, self.crop_ratio, self.flip = size, crop_scale, crop_ratio, flip
        self.jitter, self.jitter_probability, self.grayscale = jitter, jitter_probability, grayscale
        self.mean, self.std = tuple(mean), tuple(std)

    def __call__(self, images: Tensor, *, seed: int, epoch: int, view: int, sample_ids: Tensor) -> Tensor:
        """A view of every image or clip.

        Args:
            images: `(batch, channels, height, width)` or `(batch, channels, time, height, width)` uint8, 1 or 3
                channels. The frames of a clip share one draw.
            seed: of the run.
            epoch: of the training.
            view: which of the views of the sample, 0 for the query.
            sample_ids: `(batch,)` integers.

        Returns:
            `(batch, channels, [time,] size, size)` float32, normalised.
        """
        self._check_images(images)
        if sample_ids.ndim != 1 or len(sample_ids) != len(images):
            raise ShapeError(
                f"sample_ids must hold one id per image: got shape {tuple(sample_ids.shape)} for {len(images)} images"
            )
        height, width = images.shape[-2:]
        parameters = self.draw_parameters(height, width, seed=seed, epoch=epoch, view=view, sample_ids=sample_ids)
        return self.apply(images, parameters.to(images.device))

    def draw_parameters(
        self,
        heights: Tensor | int,
        widths: Tensor | int,
        *,
        seed: int,
        epoch: int,
        view: int,
        sample_ids: Tensor,
    ) -> ViewParameters:
        """What the view does to each sample; a function of its arguments, on the device of `sample_ids`.

        Args:
            heights: `(batch,)`, or one number for all: of the images before the crop.
            widths: likewise.
            seed: of the run.
            epoch: of the training.
            view: which of the views of the sample.
            sample_ids: `(batch,)` integers.
        """
        draws = uniform(seed, epoch, view, sample_ids, DRAWS)
        flip, jittered, order, *factors, grayscale = draws[:, CROP_DRAWS:].unbind(1)
        return ViewParameters(
            boxes=crop_boxes(draws[:, :CROP_DRAWS], heights, widths, self.crop_scale, self.crop_ratio),
            flip=flip < self.flip,
            order=constant(ORDERS, draws.device)[(order * len(ORDERS)).long()],
            factors=self._factors(jittered, torch.stack(factors, dim=1)),
            grayscale=grayscale < self.grayscale,
        )

    def _factors(self, jittered: Tensor, draws: Tensor) -> Tensor:
        """`(batch,)` and `(batch, 4)` draws → `(batch, 4)` factors."""
        identity = constant(IDENTITY, draws.device)
        if self.jitter is None:
            return identity.repeat(len(draws), 1)
        reach = constant(tuple(self.jitter), draws.device)
        low, high = identity - reach, identity + reach
        low[BRIGHTNESS:HUE].clamp_(min=0)  # a factor is never negative
        factors = low + draws * (high - low)
        return torch.where((jittered < self.jitter_probability)[:, None], factors, identity)

    def apply(self, images: Tensor, parameters: ViewParameters) -> Tensor:
        """The view that the parameters describe, of images as `__call__` takes them.

        The crop is resampled without a low-pass filter: reduce images of much more than twice `size` beforehand.
        """
        self._check_images(images)
        _check_parameters(parameters, images)
        if len(images) == 0:
            return torch.empty(*images.shape[:-2], self.size, self.size, device=images.device)
        make_views = _kernel() if images.device.type == "cpu" else tensors.make_views
        clips = images if images.ndim == 5 else images.unsqueeze(2)
        mean, std = (constant(x, images.device, torch.float32) for x in (self.mean, self.std))
        views = make_views(clips, parameters, mean, std, self.size)
        return views if images.ndim == 5 else views.squeeze(2)

    def apply_cropped(self, crops: Tensor, parameters: ViewParameters, device: torch.device) -> Tensor:
        """All of a view but its crop, on a device: of crops that have the size of a view already."""
        whole = constant((0, 0, self.size, self.size), device).expand(len(crops), 4)
        return self.apply(crops.to(device), parameters._replace(boxes=whole).to(device))

    def crop_and_flip(self) -> PixelViews:
        """The views of the paper's linear probe, of this size."""
        return PixelViews(size=self.size, jitter=None, grayscale=0.0, mean=self.mean, std=self.std)

    def resize_and_normalise(self, images: Tensor) -> Tensor:
        """The view for testing: resized and the centre cut out, see `rince.views.centre`; nothing random.

        Args:
            images: as `__call__` takes them.

        Returns:
            `(batch, channels, [time,] size, size)` float32, normalised.
        """
        self._check_images(images)
        pixels = resized_centre(images, self.size).div(255)
        pixels = self._normalise(pixels.reshape(*images.shape[:2], -1, self.size * self.size))
        return pixels.view(*images.shape[:-2], self.size, self.size)

    def _normalise(self, pixels: Tensor) -> Tensor:
        """In place: `(batch, channels, time, pixels)`."""
        mean, std = (constant(x, pixels.device, torch.float32).view(1, -1, 1, 1) for x in (self.mean, self.std))
        return pixels.sub_(mean).div_(std)

    def _check_images(self, images: Tensor) -> None:
        shape = tuple(images.shape)
        if images.dtype != torch.uint8:
            raise ShapeError(f"images must be uint8, from 0 to 255, got {images.dtype} of shape {shape}")
        if images.ndim not in (4, 5) or images.shape[1] not in (1, 3):
            raise ShapeError(
                "images must be (batch, channels, height, width) or (batch, channels, time, height, width) with 1 or "
                f"3 channels, got shape {shape}"
            )
        if images.shape[1] != len(self.mean):
            raise ShapeError(f"images have {images.shape[1]} channels, but mean and std have {len(self.mean)}")

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"PixelViews({settings})"


def with_channels(images: Tensor, channels: int) -> Tensor:
    """`(batch, 1 or 3, …)` uint8 images with the channels an encoder takes: gray repeated, colour made gray."""
    if images.shape[1] == channels:
        return images
    if channels == 3:
        return images.expand(-1, 3, *images.shape[2:])
    weights = constant(LUMA, images.device).view(1, 3, *[1] * (images.ndim - 2))
    return (images.float() * weights).sum(dim=1, keepdim=True).round().to(torch.uint8)


def crop_boxes(
    draws: Tensor,
    heights: Tensor | int,
    widths: Tensor | int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Tensor:
    """Where to crop: the first of ten random boxes that fits into the image, else the largest central one.

    Args:
        draws: `(batch, 22)` in [0, 1).
        heights: `(batch,)`, or one number for all: of the images.
        widths: likewise.
        scale: smallest and largest share of the area.
        ratio: lowest and highest width / height; the logarithm is uniform.

    Returns:
        `(batch, 4)` int64: top, left, height, width; on the device of the draws.
    """
    if draws.ndim != 2 or draws.shape[1] != CROP_DRAWS:
        raise ShapeError(f"draws must be (batch, {CROP_DRAWS}), got shape {tuple(draws.shape)}")
    device = draws.device
    # Fine enough that devices which differ in the last bit of exp agree on the pixel. Where there is no float64, boxes
    # are made on the CPU: by float32, 3 of 200,000 were off, and a sample would not look the same everywhere.
    draws = in_float64(draws)
    height, width = (
        torch.full((len(draws),), x, dtype=torch.float64, device=draws.device)
        if isinstance(x, int)
        else x.to(draws.device, torch.float64).expand(len(draws))
        for x in (heights, widths)
    )
    area = (height * width)[:, None] * (scale[0] + draws[:, :TRIES] * (scale[1] - scale[0]))
    low, high = math.log(ratio[0]), math.log(ratio[1])
    ratios = torch.exp(low + draws[:, TRIES : 2 * TRIES] * (high - low))
    tries_high, tries_wide = (area / ratios).sqrt().round(), (area * ratios).sqrt().round()
    fits = (tries_high >= 1) & (tries_high <= height[:, None]) & (tries_wide >= 1) & (tries_wide <= width[:, None])
    first = (fits * torch.arange(TRIES, 0, -1, device=draws.device)).argmax(dim=1, keepdim=True)
    fallback_high = torch.minimum(height, (width / ratio[0]).round()).clamp(min=1)
    fallback_wide = torch.minimum(width, (height * ratio[1]).round()).clamp(min=1)
    found = fits.any(dim=1)
    high_, wide = (
        torch.where(found, tries.gather(1, first).squeeze(1), fallback)
        for tries, fallback in ((tries_high, fallback_high), (tries_wide, fallback_wide))
    )
    top, left = (
        torch.where(found, (draws[:, 2 * TRIES + i] * (spare + 1)).floor(), (spare / 2).floor())
        for i, spare in enumerate((height - high_, width - wide))
    )
    return torch.stack([top, left, high_, wide], dim=1).long().to(device)


def _check_parameters(parameters: ViewParameters, images: Tensor) -> None:
    """The kernel reads where the parameters say, without looking whether there is something to read."""
    rows = [len(tensor) for tensor in parameters]
    if set(rows) != {len(images)}:
        raise ShapeError(f"parameters must hold one row per image: got {rows} rows for {len(images)} images")
    if images.device.type != "cpu":
        return
    start, length = parameters.boxes[:, :2], parameters.boxes[:, 2:]
    if not bool(((start >= 0) & (length >= 1) & (start + length <= torch.tensor(images.shape[-2:]))).all()):
        raise ShapeError(f"boxes must lie within the images, of {images.shape[-2]} × {images.shape[-1]} pixels")
    if not bool(((parameters.order >= 0) & (parameters.order <= HUE)).all()):
        raise ShapeError("order must hold 0 (brightness), 1 (contrast), 2 (saturation) and 3 (hue)")


def _kernel() -> Callable[..., Tensor]:
    try:
        from rince.views.kernel import make_views  # noqa: PLC0415  (numba takes a third of a second to import)
    except ModuleNotFoundError:
        raise ConfigError('views on the CPU need numba: pip install "rince[train]"') from None
    return make_views
