"""The numbers of the documents are those of the results; `scripts/write_numbers.py` writes them."""

import importlib.util
import json
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
RECALL, MAP = "retrieval/class/recall@1", "retrieval/superclass/map"


@pytest.fixture
def script(tmp_path, monkeypatch) -> ModuleType:
    """The script, where `results` has one table: SCL-in with two seeds, RINCE-in with one."""
    spec = importlib.util.spec_from_file_location("write_numbers", ROOT / "scripts" / "write_numbers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    folder = tmp_path / "results" / "some-table"
    folder.mkdir(parents=True)
    runs = [
        ("SCL-in", 1, 0.25, 0.1),
        ("SCL-in", 2, 0.27, 0.1),
        ("RINCE-in", 1, 0.29, 0.0996),
        ("SCL-in, wide", 1, 0.1, 0.05),
    ]
    for row, seed, recall, precision in runs:
        metrics = {RECALL: recall, f"{RECALL} after the head": recall / 2, MAP: precision}
        run = {"row": row, "results": {"metrics": metrics}}
        (folder / f"{row.lower()}-seed-{seed}.json").write_text(json.dumps(run), encoding="utf-8")
    differences = f"""\
        ours,theirs,metric,difference,low,high,judged
        RINCE-in,SCL-in,{RECALL},0.03,0.0204,0.04,gain
        RINCE-in,SCL-in,{RECALL} after the head,0.015,-0.001,0.031,
        RINCE-in,SCL-in,{MAP},-0.0004,-0.0006,-0.0002,loss
        """
    (folder / "differences.csv").write_text(textwrap.dedent(differences), encoding="utf-8")
    return module


def rows(script, text: str) -> list[list[str]]:
    """The cells of a table, written anew, without its head."""
    new = script.refreshed(textwrap.dedent(text))
    return [script.cells_of(line) for line in new.splitlines() if line.startswith("|")][2:]


def test_the_documents_say_what_the_results_say():
    spec = importlib.util.spec_from_file_location("write_numbers", ROOT / "scripts" / "write_numbers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main(["--check"]) == 0, "a document is behind: python scripts/write_numbers.py"


def test_a_row_has_mean_and_spread_and_the_best_is_bold(script):
    found = rows(
        script,
        """\
        <!-- numbers: some-table -->

        | | told | R@1 class | mAP superclass |
        |---|---|---|---|
        | **SCL-in** | class | 1 | 2 |
        | RINCE-in, ours | both | **3** (77.6 ± 0.1) | 4 |
        | SCL-in, wide | class | 5 | 6 |
        | something else | – | 7 | 8 |
        """,
    )
    assert found == [
        ["**SCL-in**", "class", "26.0 ± 1.4", "**0.100**"],
        ["RINCE-in, ours (one seed)", "both", "**29.0** (77.6 ± 0.1)", "**0.100**"],
        ["SCL-in, wide (one seed)", "class", "10.0", "0.050"],
        ["something else", "–", "7", "8"],
    ]


def test_a_difference_has_its_interval_and_says_which_way_it_goes(script):
    found = rows(
        script,
        """\
        <!-- numbers: some-table -->

        | | R@1 class | mAP superclass | height |
        |---|---|---|---|
        | RINCE-in − SCL-in | ? | ? | 0.5 |
        | the same after the head | ? | ? | ? |
        | RINCE-in − nobody | 1 | 2 | 3 |
        """,
    )
    assert found == [
        ["RINCE-in − SCL-in", "**+3.0 [2.0, 4.0]**", "_−0.000 [−0.001, −0.000]_", "0.5"],
        ["the same after the head", "+1.5 [−0.1, 3.1]", "?", "?"],
        ["RINCE-in − nobody", "1", "2", "3"],
    ]


def test_a_place_can_be_asked_for(script):
    table = "<!-- numbers: some-table, after the head -->\n| | R@1 class |\n|---|---|\n| RINCE-in | ? |"
    assert rows(script, table) == [["RINCE-in", "14.5"]]


def test_a_claim_has_both_means_and_the_difference(script):
    found = rows(
        script,
        """\
        <!-- claims: ours = some-table, head = some-table after the head -->

        | claim | paper | ours | head | verdict |
        |---|---|---|---|---|
        | R@1 class: RINCE-in above SCL-in (told more) | 73 → 77 | – | – | holds |
        | R@1 class: SCL-in above RINCE-in | 73 → 77 | – | – | not compared |
        | accuracy: RINCE-in above SCL-in | 76 → 77 | – | – | not measured |
        """,
    )
    assert [cells[2:4] for cells in found] == [
        [
            "26.0 ± 1.4 → 29.0, +3.0 [2.0, 4.0] (RINCE-in: one seed)",
            "13.0 ± 0.7 → 14.5, +1.5 [−0.1, 3.1] (RINCE-in: one seed)",
        ],
        ["29.0 → 26.0 ± 1.4 (RINCE-in: one seed)", "14.5 → 13.0 ± 0.7 (RINCE-in: one seed)"],
        ["–", "–"],
    ]


def test_a_claim_over_all_settings_has_all_means(script, tmp_path):
    folder = tmp_path / "results" / "size-ours"
    folder.mkdir()
    for name, value in (("2048", 0.5), ("16384", 0.7), ("4096", 0.6)):
        run = {"row": name, "results": {"metrics": {"probe/accuracy": value}}}
        (folder / f"{name}-seed-1.json").write_text(json.dumps(run), encoding="utf-8")
    table = "<!-- claims: ours = ours -->\n| claim | ours |\n|---|---|\n| accuracy by size: 4096 is best | – |"
    assert rows(script, table) == [["accuracy by size: 4096 is best", "50.0, 60.0, **70.0** (one seed)"]]


def test_a_table_of_results_that_are_not_there_is_refused(script):
    with pytest.raises(SystemExit, match="results/nothing has no runs"):
        script.refreshed("<!-- numbers: nothing -->\n| | R@1 |\n|---|---|\n| SCL-in | 1 |")


def test_looking_changes_nothing_and_says_what_is_behind(script, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(script, "DOCUMENTS", ("page.md",))
    page = tmp_path / "page.md"
    old = "<!-- numbers: some-table -->\n| | R@1 class |\n|---|---|\n| SCL-in | 1 |\n"
    page.write_text(old, encoding="utf-8")
    assert script.main(["--check"]) == 1
    assert "page.md: behind the results" in capsys.readouterr().out
    assert page.read_text(encoding="utf-8") == old
    assert script.main([]) == 0
    assert "| SCL-in | 26.0 ± 1.4 |" in page.read_text(encoding="utf-8")
    assert script.main(["--check"]) == 0
