"""Judges `rince predict`: precision, coverage and depth of its answers on test samples, and outliers that it accepts.

    python scripts/judge_answers.py RUN DATA --outliers OTHERS --out results/answers/NAME.json

DATA is a data set that the run can read, with a train split (the gallery) and a test split (the queries). Beside it
stands the plain nearest neighbour, which answers with the class of the nearest sample for as many queries: those whose
nearest sample is nearest of all. With --within, gallery and queries are two halves of the test split instead, drawn at
random: the queries are like the gallery, which is what the promise is for, and nothing was trained on.
"""

import argparse
import json
import statistics
from collections import Counter
from pathlib import Path

import torch

import rince
from rince.evaluation.evaluate import levels_of, open_split
from rince.files import write_whole
from rince.sources.part import Part


def main() -> None:
    """Reads the command line, judges, and writes a JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("data")
    parser.add_argument("--outliers", action="append", default=[])
    parser.add_argument("--precision", type=float, action="append", help="repeat for several; 0.95")
    parser.add_argument("--within", action="store_true", help="two halves of the test split")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    run = rince.open_run(given.run)
    opened = run.trained()
    gallery, test = (open_split(opened, given.data, split) for split in ("train", "test"))
    if given.within:
        mixed = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))
        gallery, test = (Part(test, rows.sort().values) for rows in mixed.chunk(2))
    strangers = {Path(place).name: opened.outliers(place) for place in given.outliers}
    found = {
        "run": {
            "recipe": run.recipe.name,
            "seed": run.recipe.seed,
            "checkpoint": opened.checkpoint,
            "place": run.place,
        },
        "rince": rince.__version__,
        "command": f"python scripts/judge_answers.py RUN {Path(given.data).name} "
        + " ".join([*(f"--outliers {name}" for name in strangers), *(["--within"] if given.within else [])]),
        "gallery": len(gallery),
        "test": len(test),
        "outliers": {name: len(source) for name, source in strangers.items()},
        "at": [judged(run, gallery, test, strangers, precision) for precision in given.precision or [0.95]],
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(given.out, json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    print(json.dumps(found["at"], indent=2))


def judged(run, gallery, test, strangers, precision) -> dict:
    """The numbers at one precision that is asked for."""
    said: list[str] = []
    answers = run.predict(gallery, test, precision=precision, say=said.append)
    levels = levels_of(run.trained(), test)
    depth = {level: len(levels) - number for number, level in enumerate(levels)} | {"": 0}
    labels = test.labels.tolist()
    given = [(each, levels[each.level][label]) for each, label in zip(answers, labels, strict=True) if each.level]
    right = Counter(answer.level for answer, truth in given if answer.group == truth)
    number = Counter(answer.level for answer, _ in given)
    classes, known = gallery.labels.tolist(), gallery.class_names
    nearest = sorted(
        ((each.near[0].cosine, known[classes[each.near[0].row]] == test.class_names[label])
         for each, label in zip(answers, labels, strict=True)),
        reverse=True,
    )[: len(given)]  # fmt: skip
    accepted = {
        name: {
            "predict": statistics.fmean(bool(each.level) for each in others),
            "nearest neighbour": statistics.fmean(each.near[0].cosine >= nearest[-1][0] for each in others),
        }
        for name, source in strangers.items()
        if nearest and (others := run.predict(gallery, source, precision=precision))
    }
    return {
        "precision asked for": precision,
        "calibration": said,
        "precision": sum(right.values()) / len(given) if given else None,
        "precision by level": {level: right[level] / number[level] for level in levels if number[level]},
        "coverage": len(given) / len(test),
        "coverage by level": {level: number[level] / len(test) for level in levels},
        "mean depth of answers": statistics.fmean(depth[each.level] for each, _ in given) if given else None,
        "mean depth, unknown as 0": statistics.fmean(depth[each.level] for each in answers),
        "levels": len(levels),
        "nearest neighbour at the same coverage": {
            "precision of the class": statistics.fmean(is_right for _, is_right in nearest) if nearest else None
        },
        "outliers accepted": accepted,
    }


if __name__ == "__main__":
    main()
