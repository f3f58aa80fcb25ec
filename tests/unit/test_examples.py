"""Everything the README and the examples show is run here, and prints what they say."""

import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXPECTED = {
    "loss_in_20_lines.py": ["loss 6.3749", "queries with a positive of rank 1 and 2: [8, 8]"],
    "own_taxonomy.py": ["TableRanks(classes=4, ranks=3)", "[[1, 2, 3, 0, -1], [0, 0, 0, 1, -1]]"],
    "moco_with_labels.py": ["step 200  loss 0.3"],
    "sentence_transformers_trainer.py": ["4 intents, 2 ranks", "paths_recall@1_rank_2", "grades_ndcg"],
}


@functools.cache  # two tests look at what one example prints
def run(*command):
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True, cwd=ROOT).stdout


def test_no_example_is_forgotten():
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_example(name):
    output = run(f"examples/{name}")
    for text in EXPECTED[name]:
        assert text in output


def test_moco_example_learns_the_order():
    rows = re.findall(r"negatives: ([+-]\S+)  ([+-]\S+)  ([+-]\S+)", run("examples/moco_with_labels.py"))
    assert len(rows) == 4
    first, second, negative = (float(value) for value in rows[-1])
    assert first > second + 0.2 > negative + 0.4


def test_the_sentence_example_learns():
    rows = re.findall(r"(\w+_ndcg) +(\S+) → (\S+)", run("examples/sentence_transformers_trainer.py"))
    assert [name for name, _, _ in rows] == ["paths_ndcg", "grades_ndcg"]
    assert all(float(after) > float(before) for _, before, after in rows)


def test_the_readme_prints_what_it_says():
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 1
    for code, output in blocks:
        assert run("-c", code) == output
    assert len([line for line in blocks[0][0].splitlines() if line.strip()]) <= 15


def test_the_readmes_commands_are_targets_of_the_makefile():
    commands = re.findall(r"^make (\w+)$", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert commands == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{command}:", makefile, flags=re.MULTILINE) for command in commands)
