"""How figures look, and how one is drawn: once, as a PNG, an SVG, and that SVG made fit to stand in a page."""

from __future__ import annotations

import colorsys
import io
import math
import re
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.path import Path
from matplotlib.transforms import Bbox

from rince.report.collect import Level

INK, MUTED, GRID, PAPER = "#1b1f24", "#5c6470", "#e3e6ea", "#ffffff"
NEGATIVE = "#c8480a"
RANKS = ("#00504c", "#1a8c85", "#5fb6ab", "#94cdc3", "#b9dcd5")  # dark to light: close to far
RUNS = ("#0070b0", "#dd8500", "#b8508c", "#00866a", "#47a0d6", "#8a6fc0", "#7d6a1f", "#6b7683")
# What the page puts in place of these colours, so that figures follow its light and dark theme.
VARIABLES = (
    {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--line)", PAPER: "var(--paper)", NEGATIVE: "var(--negative)"}
    | {colour: f"var(--rank-{number})" for number, colour in enumerate(RANKS, 1)}
    | {colour: f"var(--run-{number})" for number, colour in enumerate(RUNS, 1)}
)
GROUPS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00"),
    *("#56b4e9", "#8c6bb1", "#8a7a2f", "#b2434f", "#7f8c99"),
)
SHAPES = ("o", "^", "s", "D")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.4)), (0, (5, 2, 1, 2)))
PANEL = (3.9, 2.8)
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a class may be called $x$
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so files are the same everywhere
    "font.size": 9,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.handlelength": 2.2,
    "lines.linewidth": 1.6,
}
SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"


@dataclass(frozen=True)
class Drawn:
    """A figure.

    Attributes:
        name: of its files, without the ending.
        about: what it shows, for those who cannot see it.
        png: its file.
        svg: its file.
        inline: the SVG for a page.
    """

    name: str
    about: str
    png: bytes
    svg: bytes
    inline: str


def clean(text: str, most: int = 60) -> str:
    """Text of unknown origin as one line of printable characters that runs in its own direction, cut in the middle."""
    text = text.encode("utf-8", "replace").decode()
    text = "".join("\N{REPLACEMENT CHARACTER}" if _breaks(character) else character for character in text)
    return text if len(text) <= most else f"{text[: most * 2 // 3]}…{text[-(most // 3) + 1 :]}"


def _breaks(character: str) -> bool:
    """Controls, private and line breaks, and what would turn the text after it around."""
    return unicodedata.category(character) in ("Cc", "Co", "Zl", "Zp") or character in "\u202a\u202b\u202d\u202e"


def draw(name: str, about: str, paint: Callable[[Axes], None], size: tuple[float, float] | None = None) -> Drawn:
    """Paints one pair of axes and saves it twice: as a panel of the common size, or cut to what a larger one holds."""
    style: Any = STYLE | {"svg.hashsalt": name}
    with mpl.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # drawn as a box in the PNG, as text in the SVG
        figure = Figure(figsize=size or PANEL, layout="constrained")
        box: dict[str, Any] = {"bbox_inches": "tight", "pad_inches": 0.04} if size else {}
        paint(figure.subplots())
        figure.draw_without_rendering()
        for axes in figure.axes:
            _free_legend(axes)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out now; each save would do it again, at half of its time
        png, svg = io.BytesIO(), io.BytesIO()
        figure.savefig(png, format="png", dpi=200, metadata={"Software": None}, **box)
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None}, **box)
    return Drawn(name, about, png.getvalue(), svg.getvalue(), inline_svg(svg.getvalue(), name, about))


def panels(name: str, paints: Sequence[Callable[[Axes], None]], columns: int = 2) -> bytes:
    """An SVG of several panels that show the same curves, with one legend below them all."""
    style: Any = STYLE | {"svg.hashsalt": name}
    rows, columns = math.ceil(len(paints) / columns), min(columns, len(paints))
    with mpl.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * rows), layout="constrained")
        all_axes = figure.subplots(rows, columns, squeeze=False).flat
        for axes, paint in zip(all_axes, paints, strict=False):
            paint(axes)
        for axes in list(all_axes)[len(paints) :]:
            axes.set_axis_off()
        handles, labels = figure.axes[0].get_legend_handles_labels()
        lines = math.ceil(len(labels) / (2 * columns))
        figure.set_figheight(figure.get_figheight() + lines * 1.5 * STYLE["legend.fontsize"] / 72)
        figure.legend(handles, labels, loc="outside lower left", ncols=2 * columns)
        svg = io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return svg.getvalue()


def _free_legend(axes: Axes) -> None:
    """Moves a legend that covers a curve to a corner that is free, or below the axes if none is."""
    legend = axes.get_legend()
    if legend is None or not covers(axes, legend):
        return
    for corner in ("upper right", "upper left", "lower right", "lower left"):
        legend.set_bbox_to_anchor(None)  # the axes themselves
        legend.set_loc(corner)
        if not covers(axes, legend):
            return
    handles, labels = axes.get_legend_handles_labels()
    size = float(legend.get_texts()[0].get_fontsize())
    longest = max(map(len, labels))
    columns = 3 if longest <= 12 else 2 if longest <= 24 else 1
    legend.remove()
    figure = axes.figure
    assert isinstance(figure, Figure)
    figure.set_figheight(figure.get_figheight() + 1.5 * size / 72 * math.ceil(len(labels) / columns))
    figure.legend(handles, labels, loc="outside lower left", ncols=columns, fontsize=size)


def covers(axes: Axes, legend: Legend) -> bool:
    """Whether a legend lies over a curve, a point or a histogram; lines of help, in muted ink, do not count."""
    box = legend.get_window_extent()
    lines = [line for line in axes.lines if to_hex(line.get_color()) != MUTED]
    if any(_meets(line.get_path().transformed(line.get_transform()), box) for line in lines):
        return True
    if any(_meets(patch.get_path().transformed(patch.get_transform()), box) for patch in axes.patches):
        return True
    points = [cloud.get_offset_transform().transform(cloud.get_offsets()) for cloud in axes.collections]
    return any(box.contains(x, y) for cloud in points for x, y in cloud)


def _meets(path: Path, box: Bbox) -> bool:
    """Whether a path goes through a box."""
    found: bool = path.intersects_bbox(box, filled=False)
    return found


def spread(places: Sequence[float], least: float, low: float, high: float) -> list[float]:
    """Rising places moved apart, each as little as need be, so that neighbours are `least` apart.

    They lie between `low` and `high`, where all fit.

    >>> spread([0, 1, 9], 3, 0, 10)
    [0, 3, 9]
    >>> spread([8, 9, 10], 3, 0, 10)
    [4, 7, 10]
    """
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + least) if moved else max(place, low))
    for i in range(len(moved) - 1, -1, -1):
        moved[i] = min(moved[i], moved[i + 1] - least if i + 1 < len(moved) else high)
    return moved


def inline_svg(svg: bytes, name: str, about: str) -> str:
    """The SVG without what only a file needs, its ids apart from those of other figures, in the colours of the page."""
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    root = ElementTree.fromstring(svg)
    for tag in ("metadata", "style"):  # the style would apply to the whole page
        for parent in root.iter():
            for child in parent.findall(f"{{{SVG}}}{tag}"):
                parent.remove(child)
    for element in root.iter():
        for key, value in element.attrib.items():
            if key == "id":
                element.set(key, f"{name}-{value}")
            elif key == f"{{{XLINK}}}href" and value.startswith("#"):
                element.set(key, f"#{name}-{value[1:]}")
            elif key in ("style", "fill", "stroke", "clip-path"):
                element.set(key, _restyled(value, name))
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.set("role", "img")
    root.set("aria-label", about)
    return ElementTree.tostring(root, encoding="unicode")


def _restyled(style: str, name: str) -> str:
    style = re.sub(r"url\(#", f"url(#{name}-", style)
    style = re.sub(r"font-family:[^;]*;?", "", style)  # the page's own
    return re.sub(r"#[0-9a-f]{6}\b", lambda found: VARIABLES.get(found[0], found[0]), style)


def group_marks(levels: Sequence[Level], number: int) -> list[tuple[str, int]]:
    """A colour and a shape for every group of a level.

    Up to ten groups have a colour each. More than that take colour and shape of the group above them, so that relatives
    look alike, and differ among themselves in lightness.
    """
    level = levels[number]
    if len(level.groups) <= len(GROUPS) or number == len(levels) - 1:
        return [(GROUPS[i % len(GROUPS)], i // len(GROUPS) % len(SHAPES)) for i in range(len(level.groups))]
    above = group_marks(levels, number + 1)
    parent = dict(zip(level.of_class, levels[number + 1].of_class, strict=True))
    marks = []
    for group in range(len(level.groups)):
        family = sorted(own for own, up in parent.items() if up == parent[group])
        shift = family.index(group) / max(1, len(family) - 1) - 0.5
        hue, lightness, saturation = colorsys.rgb_to_hls(*to_rgb(above[parent[group]][0]))
        colour = colorsys.hls_to_rgb(hue, min(0.8, max(0.25, lightness + 0.3 * shift)), saturation)
        marks.append((to_hex(colour), above[parent[group]][1]))
    return marks


def look(number: int) -> dict[str, Any]:
    """Colour and dashes of a run, the same in all figures; where colours begin again, the dashes are others."""
    return {"color": RUNS[number % len(RUNS)], "linestyle": DASHES[(number + number // len(RUNS)) % len(DASHES)]}


def slug(text: str) -> str:
    """Letters, digits and hyphens, fit for a file and for an id."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40] or "x"
