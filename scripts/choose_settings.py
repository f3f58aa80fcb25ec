"""Chooses the settings of a table's contrastive rows: on validation, for the best SCL row, before any ranked run.

    python scripts/choose_settings.py text definitions --out results/settings/definitions.csv
    python scripts/choose_settings.py text DIR/clinc150 --out results/settings/clinc150.csv
    python scripts/choose_settings.py cifar100 DIR/cifar100 scale=pretrained data.validation=0.1 --epochs 5 --out CSV

Every setting of the grid trains SCL-in and SCL-out, or the rows named, with one seed. What counts is R@1 of the class
on the part held out (`data.validation`), features before the head: of the rows the better one, of the settings the
best, of equal ones the shorter. The test set is not looked at.
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

RATES, EPOCHS, ROWS = [0.0003, 0.001, 0.003], [10, 30], ["scl-in", "scl-out"]
COUNTS = "class/recall@1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", help="text, images, vectors or cifar100: the folder of the recipes")
    parser.add_argument("source", help="data.source")
    parser.add_argument("changes", nargs="*", help="further changes of the recipe")
    parser.add_argument("--key", default="optimizer.lr", help="the rate that is chosen; %(default)s by default")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="to try; %(default)s by default")
    parser.add_argument("--epochs", type=int, nargs="+", default=EPOCHS, help="to try; %(default)s by default")
    parser.add_argument("--rows", nargs="+", default=ROWS, help="to try; %(default)s by default")
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write")
    given = parser.parse_args()
    found = []
    for rate, epochs, row in itertools.product(given.rates, given.epochs, given.rows):
        changes = [f"{given.key}={rate}", f"train.epochs={epochs}", "log.logger=none", *given.changes]
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            rince.fit(f"{given.recipes}/{row}", *changes, source=given.source, out=Path(folder) / "run")
            noted = json.loads((Path(folder) / "run" / "validation.json").read_text())
        print(row, rate, epochs, noted["metrics"], f"{time.perf_counter() - began:.0f} s", flush=True)
        found.append({"row": row, given.key: rate, "train.epochs": epochs, **noted["metrics"]})
        write(found, given.out)
    best = max(found, key=lambda each: (each[COUNTS], -each["train.epochs"]))
    print(f"chosen: {given.key}={best[given.key]} train.epochs={best['train.epochs']} ({best['row']})")


def write(found: list[dict[str, object]], out: Path) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(found[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    write_out(out, text.getvalue(), in_new_folder=True)


if __name__ == "__main__":
    main()
