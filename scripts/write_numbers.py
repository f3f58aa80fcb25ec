"""Writes measured numbers into the tables of the documents: `python scripts/write_numbers.py`; `--check` only looks.

A table below the line

    <!-- numbers: cifar100-long -->        or        <!-- numbers: cifar100-long, after the head -->

has its numbers from `results/cifar100-long`. A row that begins with the name of a row of those results gets mean ±
standard deviation over its seeds, a row `A − B` the difference of two with its interval (bold: above 0, italic: below),
and a row `the same after the head` that of the row before it. The best mean of a column is bold. Columns are known by
their headings; other cells, and other rows, stay as they are, as does the paper's number in brackets.

A table below the line

    <!-- claims: pretrained = cifar100-pretrained, long = cifar100-long -->

has a claim a row, `R@1 class: RINCE-in above SCL-in`, and columns called pretrained and long, whose cells say what came
out there: both means, and the difference with its interval. A row `accuracy by temperature: …` gets the means of all
rows of `results/temperature-pretrained` in the column pretrained, and so on, the best in bold.
"""

import argparse
import csv
import json
import re
import statistics
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "docs/claims.md", "docs/reproducing.md")
AFTER = " after the head"
CLASS, ABOVE = "retrieval/class/", ("retrieval/superclass/", "retrieval/level2/")
OUTLIERS = tuple(f"outliers/{name}/auroc" for name in ("definitions-outliers", "out-of-scope.csv", "tiny-imagenet-20"))
ONE_SEED = " (one seed)"
# Heading → what it may stand for, of which results have one.
HEADINGS: dict[str, tuple[str, ...]] = {
    "accuracy": ("probe/accuracy",),
    "probe": ("probe/accuracy",),
    "finetuned accuracy": ("finetune/accuracy",),
    "AUROC": OUTLIERS,
    "AUROC of outliers": OUTLIERS,
    "AUROC out-of-scope": OUTLIERS,
    "AUROC, 20 classes left out": OUTLIERS,
    "AUROC CIFAR-10": ("outliers/cifar10/auroc",),
    "AUROC TinyImageNet": ("outliers/tiny-imagenet/auroc",),
}
for short, name in (("R@1", "recall@1"), ("mAP", "map")):
    HEADINGS[short] = (CLASS + name,)
    HEADINGS |= {f"{short} {level}": (CLASS + name,) for level in ("class", "intent")}
    levels = ("superclass", "group", "domain", "coarse", "above the class")
    HEADINGS |= {f"{short} {level}": tuple(level_ + name for level_ in ABOVE) for level in levels}
    HEADINGS[f"{short} department"] = (f"retrieval/level3/{name}",)


class Difference(NamedTuple):
    """Of two rows, and its interval."""

    value: float
    low: float
    high: float


class Results:
    """What a folder below `results` says."""

    def __init__(self, name: str) -> None:
        folder = ROOT / "results" / name
        self.name = name
        self.rows: dict[str, dict[str, list[float]]] = {}
        for file in sorted(folder.glob("*-seed-*.json")):
            run = json.loads(file.read_text(encoding="utf-8"))
            of_row = self.rows.setdefault(run["row"], {})
            for metric, value in run["results"]["metrics"].items():
                of_row.setdefault(metric, []).append(value)
        self.differences: dict[tuple[str, str, str], Difference] = {}
        if (folder / "differences.csv").exists():
            with (folder / "differences.csv").open(encoding="utf-8") as table:
                for line in csv.DictReader(table):
                    found = Difference(*(float(line[key]) for key in ("difference", "low", "high")))
                    self.differences[line["ours"], line["theirs"], line["metric"]] = found

    def metric(self, heading: str, place: str) -> str | None:
        """What a heading stands for here; None if for nothing that was measured."""
        known = {metric for row in self.rows.values() for metric in row}
        names = [name + place for name in HEADINGS.get(heading, ())]
        return next((name for name in names if name in known), None)

    def row(self, label: str) -> str | None:
        """The row that a label begins with, the longest; None if with none."""
        label = label.casefold()
        found = [row for row in self.rows if re.match(rf"{re.escape(row.casefold())}($|,| \()", label)]
        return max(found, key=len, default=None)

    def seeds(self, row: str) -> int:
        """How many a row has."""
        return max((len(values) for values in self.rows.get(row, {}).values()), default=0)

    def mean(self, row: str, metric: str) -> str | None:
        """Mean ± standard deviation; None if nobody measured it."""
        values = self.rows.get(row, {}).get(metric)
        if not values:
            return None
        text = number(statistics.fmean(values), metric)
        alike = len(set(values)) == 1  # one seed, or nothing that is drawn
        return text if alike else f"{text} ± {number(statistics.stdev(values), metric)}"

    def difference(self, ours: str, theirs: str, metric: str, *, marked: bool) -> str | None:
        """Ours less theirs, with its interval; None if nobody measured it."""
        found = self.differences.get((ours, theirs, metric))
        if found is None:
            return None
        text = f"{number(found.value, metric, sign=True)} [{number(found.low, metric)}, {number(found.high, metric)}]"
        mark = "" if not marked else "**" if found.low > 0 else "_" if found.high < 0 else ""
        return f"{mark}{text}{mark}"

    def seeds_told(self, *rows: str) -> str:
        """Which of the rows have one seed only, in brackets."""
        few = [row for row in rows if self.seeds(row) == 1 and not row.lower().startswith(("frozen", "random"))]
        return "" if not few else ONE_SEED if len(few) == len(rows) else f" ({few[0]}: one seed)"


results = cache(Results)


def number(value: float, metric: str, *, sign: bool = False) -> str:
    """In percent with one digit, mAP with three; the sign of a difference even where it rounds to 0."""
    text = f"{abs(value):.3f}" if "/map" in metric else f"{abs(100 * value):.1f}"
    return ("−" if value < 0 else "+" if sign else "") + text


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def plain(label: str) -> str:
    """A row's label without what is written for the reader."""
    return label.replace("**", "").replace("_", "").removesuffix(ONE_SEED)


def numbers(lines: list[str], spec: str) -> Iterator[str]:
    """A table of rows, with its numbers as they are now."""
    folder, _, place = spec.partition(",")
    found, place = results(folder.strip()), AFTER if place.strip() else ""
    headings = cells_of(lines[0])
    if not found.rows:
        raise SystemExit(f"results/{folder.strip()} has no runs, but a table wants its numbers")
    table = [cells_of(line) for line in lines[2:]]
    best = _best(found, headings, table, place)
    told_of = (found.row(name) for cells in table for name in plain(cells[0]).split(" − "))
    tells_seeds = any(found.seeds(row) > 1 for row in told_of if row)
    last: tuple[str, str] | None = None
    yield from lines[:2]
    for cells in table:
        label, at = plain(cells[0]), place
        rows = tuple(row for name in label.split(" − ") if (row := found.row(name)))
        if label.startswith("the same after the head") and last:
            rows, at = last, AFTER
        elif len(rows) < len(label.split(" − ")):
            rows = ()
        last = rows if len(rows) == 2 else None
        for column, heading in enumerate(headings):
            metric = found.metric(heading, at)
            if metric is None or not rows:
                continue
            if len(rows) == 2:
                new = found.difference(rows[0], rows[1], metric, marked=True)
            else:
                new = found.mean(rows[0], metric)
                new = f"**{new}**" if new and (rows[0], metric) in best else new
            of_paper = re.search(r" \([\d.]+(?: ± [\d.]+)?\)$", cells[column])
            cells[column] = new + (of_paper[0] if of_paper else "") if new else cells[column]
        if rows:
            told = found.seeds_told(*rows) if tells_seeds else ""
            cells[0] = cells[0].removesuffix(ONE_SEED) + (told if told == ONE_SEED else "")
        yield f"| {' | '.join(cells)} |"


def _best(found: Results, headings: list[str], table: list[list[str]], place: str) -> set[tuple[str, str]]:
    """Rows and metrics: the highest mean of a column, as it is written."""
    rows = [row for cells in table if " − " not in cells[0] and (row := found.row(plain(cells[0])))]
    best = set()
    for metric in filter(None, (found.metric(heading, place) for heading in headings)):
        values = found.rows
        means = {row: number(statistics.fmean(values[row][metric]), metric) for row in rows if metric in values[row]}
        if len(set(means.values())) > 1:
            best |= {(row, metric) for row, mean in means.items() if mean == max(means.values(), key=float)}
    return best


def claims(lines: list[str], spec: str) -> Iterator[str]:
    """A table of claims, with what came out as it is now."""
    headings = cells_of(lines[0])
    folders = dict(each.strip().split(" = ") for each in spec.split(","))
    yield from lines[:2]
    for line in lines[2:]:
        cells = cells_of(line)
        heading, _, rest = cells[0].partition(": ")
        by = re.fullmatch(r"(.+) by ([\w-]+)", heading)
        for scale, where in folders.items():
            folder, _, after = where.partition(" ")
            place = f" {after}" if after else ""
            if by:
                new = of_all(results(f"{by[2]}-{folder}"), by[1], place, within=cells[0])
            else:
                new = of_two(results(folder), heading, rest, place)
            column = headings.index(scale)
            cells[column] = new or cells[column]
        yield f"| {' | '.join(cells)} |"


def of_two(found: Results, heading: str, claim: str, place: str) -> str | None:
    """`SCL-in → RINCE-in, difference [interval]` for `RINCE-in above SCL-in`; None if that is not measured."""
    both = re.fullmatch(r"(.+?) above ([^;(]+?)(?: [;(].*)?", claim)
    metric = found.metric(heading, place)
    if both is None or metric is None:
        return None
    ours, theirs = (
        next((row for row in found.rows if row.casefold() == name.casefold()), "") for name in both.groups()
    )
    means = [found.mean(row, metric) for row in (theirs, ours)]
    if None in means:
        return None
    difference = found.difference(ours, theirs, metric, marked=False)
    return f"{means[0]} → {means[1]}" + (f", {difference}" if difference else "") + found.seeds_told(theirs, ours)


def of_all(found: Results, heading: str, place: str, *, within: str) -> str | None:
    """The means of all rows that have been run, the best in bold."""
    metric = found.metric(heading, place)
    kind = "SCL-in, " if "SCL-in" in within else "SCL-out, " if "SCL-out" in within else ""
    rows = [row for row in found.rows if row.startswith(kind) and metric in found.rows[row]]
    if metric is None or not rows:
        return None
    rows.sort(key=lambda row: [float(each) for each in re.findall(r"[\d.]+", row)])
    values = {row: statistics.fmean(found.rows[row][metric]) for row in rows}
    texts = {row: number(value, metric) for row, value in values.items()}
    top = max(texts.values(), key=float)
    told = [f"**{text}**" if text == top else text for text in texts.values()]
    few, of = sum(found.seeds(row) == 1 for row in rows), len(rows)
    return ", ".join(told) + (
        "" if not few else ONE_SEED if few == of else f" (one seed, {of - few} of {of} with three)"
    )


def refreshed(text: str) -> str:
    """A document with the numbers as they are now."""
    lines, out = text.split("\n"), []
    while lines:
        line = lines.pop(0)
        out.append(line)
        marker = re.fullmatch(r"<!-- (numbers|claims): (.+) -->", line)
        if not marker:
            continue
        while lines and not lines[0].startswith("|"):
            out.append(lines.pop(0))
        table = []
        while lines and lines[0].startswith("|"):
            table.append(lines.pop(0))
        out += {"numbers": numbers, "claims": claims}[marker[1]](table, marker[2])
    return "\n".join(out)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="say which documents are behind, and change nothing")
    check = parser.parse_args(arguments).check
    behind = []
    for name in DOCUMENTS:
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        new = refreshed(text)
        if new == text:
            continue
        behind.append(name)
        if not check:
            path.write_text(new, encoding="utf-8")
            print(f"{name}: written anew")
    if check and behind:
        print(f"{', '.join(behind)}: behind the results; run python scripts/write_numbers.py")
    return int(check and bool(behind))


if __name__ == "__main__":
    sys.exit(main())
