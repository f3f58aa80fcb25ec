r"""Chooses the settings of a table's contrastive rows: on validation, for the best SCL row, before any ranked run.

    python scripts/choose_settings.py text definitions --out results/settings/definitions.csv
    python scripts/choose_settings.py text DIR/clinc150 --out results/settings/clinc150.csv
    python scripts/choose_settings.py cifar100 DIR/cifar100 scale=pretrained data.validation=0.1 \
        --grid optimizer.lr 0.0003 0.001 0.003 --grid train.epochs 5 --out CSV
    python scripts/choose_settings.py video DIR/ucf101 scale=reduced data.validation=0.15 \
        --rows infonce hard-positive-in --grid optimizer.lr 0.0001 0.0003 0.001 --out CSV

Every setting of the grid trains SCL-in and SCL-out, or the rows named, with one seed. What counts is R@1 of the class
on the part held out (`data.validation`), features before the head: of the rows the better one, of the settings the
best, of equal ones the first. The test set is not looked at. What `--out` holds already is not trained again.
"""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import json
import tempfile
import time
from pathlib import Path

import rince
from rince.files import write_out

GRID = [["train.epochs", "10", "30"], ["optimizer.lr", "0.0003", "0.001", "0.003"]]
COUNTS = "class/recall@1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", help="text, images, vectors, cifar100 or video: the folder of the recipes")
    parser.add_argument("source", help="data.source")
    parser.add_argument("changes", nargs="*", help="further changes of the recipe")
    parser.add_argument("--grid", action="append", nargs="+", metavar=("KEY", "VALUE"), help=f"by default {GRID}")
    parser.add_argument("--rows", nargs="+", default=["scl-in", "scl-out"], help="to try; %(default)s by default")
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write, or to go on with")
    given = parser.parse_args()
    grid = given.grid or GRID
    keys = [key for key, *_ in grid]
    found = list(csv.DictReader(given.out.open(encoding="utf-8"))) if given.out.is_file() else []
    for *values, row in itertools.product(*(values for _, *values in grid), given.rows):
        tried = {"row": row} | dict(zip(keys, values, strict=True))
        if any(tried.items() <= before.items() for before in found):
            continue
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            changes = [f"{key}={value}" for key, value in tried.items() if key != "row"]
            changes += ["log.logger=none", *given.changes]
            rince.fit(f"{given.recipes}/{row}", *changes, source=given.source, out=Path(folder) / "run")
            noted = json.loads((Path(folder) / "run" / "validation.json").read_text())
        print(*tried.values(), noted["metrics"], f"{time.perf_counter() - began:.0f} s", flush=True)
        found.append(tried | noted["metrics"])
        write(found, given.out)
    best = max(found, key=lambda each: float(each[COUNTS]))
    print("chosen:", *(f"{key}={best[key]}" for key in keys), f"({best['row']})")


def write(found: list[dict[str, object]], out: Path) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(found[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    write_out(out, text.getvalue(), in_new_folder=True)


if __name__ == "__main__":
    main()
