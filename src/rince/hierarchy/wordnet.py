"""How far classes are from each other in WordNet, and what their ids are called.

ImageNet and TinyImageNet name classes by WordNet ids: `n01440764` is the tench. The table that ships (`wordnet.csv`,
WordNet 3.0, licence in `NOTICE`) holds the 1000 classes of ImageNet with all of their hypernyms; any other CSV file
with the columns `child` and `parent`, and perhaps `name`, does as well.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from rince.errors import DataError

SHIPPED = "hierarchy/wordnet.csv"


@dataclass(frozen=True)
class WordNet:
    """Who is a kind of whom.

    Attributes:
        parents: id → ids of what it is a kind of, several where WordNet has several; none for a root.
        names: id → its first name; empty where the table has none.
        source: for messages.

    Example:
        >>> load_wordnet().path_lengths(["n02123045", "n02123159", "n02124075"])  # tabby, tiger cat, Egyptian cat
        tensor([[0., 2., 2.],
                [2., 0., 2.],
                [2., 2., 0.]])
    """

    parents: dict[str, tuple[str, ...]]
    names: dict[str, str]
    source: str

    def path_lengths(self, ids: Sequence[str]) -> Tensor:
        """`(ids, ids)`: edges from one up to a common ancestor and down to the other, on the shortest way.

        Where something is a kind of several, every way up counts. Infinite without a common ancestor.
        """
        absent = [name for name in ids if name not in self.parents]
        if absent:
            raise DataError(
                f"{self.source} does not know {len(absent)} of {len(ids)} classes, {absent[0]!r} first; name classes "
                "by WordNet id, such as n01440764, or give a table of your own with ranks.file"
            )
        climbs = [self._climb(name) for name in ids]
        places = {node: place for place, node in enumerate(dict.fromkeys(node for climb in climbs for node in climb))}
        up = torch.full((len(ids), len(places)), torch.inf)
        for row, climb in zip(up, climbs, strict=True):
            row[[places[node] for node in climb]] = torch.tensor(list(climb.values()), dtype=torch.float32)
        rows = []
        for row, climb in zip(up, climbs, strict=True):
            ancestors = [places[node] for node in climb]
            rows.append((up[:, ancestors] + row[ancestors]).min(dim=1).values)
        return torch.stack(rows)

    def _climb(self, name: str) -> dict[str, int]:
        """Every ancestor, and itself, with the fewest edges up to it."""
        edges, level = {name: 0}, [name]
        while level:
            level = list(dict.fromkeys(p for node in level for p in self.parents.get(node, ()) if p not in edges))
            edges |= dict.fromkeys(level, max(edges.values()) + 1)
        return edges


@cache
def load_wordnet(file: str | None = None) -> WordNet:
    """The table that ships, or one from a CSV file with the columns child, parent and perhaps name.

    A child with several parents has several rows; one without any has an empty cell, or stands as a parent only.
    """
    if file is None:
        return _read((files("rince") / SHIPPED).read_text("utf-8"), "the WordNet table")
    path = Path(file)
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    try:
        return _read(path.read_text("utf-8-sig"), str(path))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not CSV: {error}") from None


def _read(text: str, source: str) -> WordNet:
    parents: dict[str, tuple[str, ...]] = {}
    names: dict[str, str] = {}
    reader = csv.DictReader(io.StringIO(text))
    header = list(reader.fieldnames or [])
    if not {"child", "parent"} <= set(header):
        raise DataError(f"{source} needs the columns child and parent; it has {', '.join(header) or 'nothing'}")
    for row in reader:
        child, parent = (str(row[key] or "").strip() for key in ("child", "parent"))
        if not child:
            raise DataError(f"{source} has no child in line {reader.line_num}; write one")
        above = parents.get(child, ())
        parents[child] = (*above, parent) if parent and parent not in above else above
        parents.setdefault(parent, ())
        names.setdefault(child, str(row.get("name") or "").strip())
    parents.pop("", None)
    return WordNet(parents, names, source)


def readable_names(class_names: Sequence[str]) -> tuple[str, ...]:
    """What classes are called: WordNet ids become their names, all other names stay as they are.

    Two of one name are told apart by what they are kinds of: `crane (wading bird)`, `crane (lifting device)`.
    """
    wordnet = load_wordnet()
    names = [wordnet.names.get(name, name) for name in class_names]
    shared = Counter(names)
    return tuple(
        f"{name} ({wordnet.names[wordnet.parents[given][0]]})" if shared[name] > 1 and given in wordnet.names else name
        for name, given in zip(names, class_names, strict=True)
    )
