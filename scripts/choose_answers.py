"""Chooses what `rince predict` goes by: how many neighbours, and what each counts. The test set is not looked at.

    python scripts/choose_answers.py RUN… --out results/answers/choice.csv

Of each run the training split is the gallery, and what it held out (`data.validation`) is asked for as if it were not
there. What counts is how deep the answers are at a precision of 0.9, 0.95 and 0.98: the mean over the samples of the
level answered, 1 for the class, 0 for unknown, evenly spaced between; and of that the mean over the runs. Of equal
choices the one of fewest neighbours is taken.
"""

import argparse
import csv
import io
import itertools
import statistics
from pathlib import Path

import torch

import rince
from rince.errors import ConfigError
from rince.evaluation.answers import Calibration, calibrate, thresholds_of
from rince.evaluation.evaluate import open_split
from rince.evaluation.index import gallery_of
from rince.files import write_out

PRECISIONS, NEIGHBOURS = (0.9, 0.95, 0.98), (1, 3, 5, 10, 20)
WEIGHTS = {"1": 0.0, "1/sqrt(i)": 0.5, "1/i": 1.0, "1/i^2": 2.0}


def main() -> None:
    """Reads the command line, tries every choice on every run, and writes a CSV file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write")
    given = parser.parse_args()
    found = [{"weights": weights, "neighbours": k} for weights, k in itertools.product(WEIGHTS, NEIGHBOURS)]
    for folder in given.runs:
        run = rince.open_run(folder)
        if not run.recipe.data.validation:
            raise ConfigError(f"the run {folder} held nothing out; train it with data.validation=0.1")
        opened = run.trained()
        split = run.recipe.data.train_split
        gallery = gallery_of(opened, open_split(opened, run.recipe.data.source, split), run.place)
        for choice in found:
            power = WEIGHTS[choice["weights"]]
            calibration = calibrate(gallery, choice["neighbours"], lambda k, power=power: weights(k, power))
            depths = [depth(calibration, precision) for precision in PRECISIONS]
            choice[f"{run.recipe.name} on {Path(run.recipe.data.source).name}"] = statistics.fmean(depths)
            print(choice, flush=True)
    for choice in found:
        choice["mean"] = statistics.fmean(value for value in choice.values() if isinstance(value, float))
    print("chosen:", max(found, key=lambda choice: (choice["mean"], -choice["neighbours"])))
    text = io.StringIO()
    writer = csv.DictWriter(text, list(found[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: f"{value:.4f}" if isinstance(value, float) else value for name, value in choice.items()}
        for choice in found
    )
    write_out(given.out, text.getvalue(), in_new_folder=True)


def weights(k: int, power: float) -> torch.Tensor:
    """What the i-th of k neighbours counts: i to the power of minus `power`; 1 in all."""
    unscaled = torch.arange(1.0, k + 1) ** -power
    return unscaled / unscaled.sum()


def depth(calibration: Calibration, precision: float) -> float:
    """How deep the answers to the samples that were asked for are, 0 to 1."""
    thresholds = thresholds_of(calibration, precision=precision)
    levels = len(calibration.levels)
    answered = ((levels - number, level.accepted) for number, level in enumerate(thresholds.levels))
    return sum(deep * accepted for deep, accepted in answered) / levels / thresholds.asked


if __name__ == "__main__":
    main()
