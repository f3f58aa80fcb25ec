"""What `import rince` promises."""

import subprocess
import sys

import pytest

import rince

DESIGN = (
    "NEGATIVE EXCLUDED RankTerm ranked_info_nce ranked_info_nce_from_embeddings RankedInfoNCE linear_temperatures "
    "TableRanks InstanceRanks view_ranks MemoryBank MomentumTwin RinceError ConfigError ShapeError DataError"
)


def output_of(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_every_public_name_of_the_design_is_there():
    assert set(DESIGN.split()) - set(rince.__all__) == set()
    assert all(hasattr(rince, name) for name in rince.__all__)
    assert len(set(rince.__all__)) == len(rince.__all__)
    assert (rince.NEGATIVE, rince.EXCLUDED) == (0, -1)
    with pytest.raises(AttributeError, match="no attribute 'TripletLoss'"):
        _ = rince.TripletLoss


@pytest.mark.slow
def test_all_of_it_costs_torch_and_nothing_heavier():
    code = """
import sys, torch
before = {name.partition(".")[0] for name in sys.modules}
import rince
everything = [getattr(rince, name) for name in rince.__all__]
print(*sorted({name.partition(".")[0] for name in sys.modules} - before))
"""
    assert output_of(code).split() == ["rince"]


@pytest.mark.slow
def test_help_does_not_load_torch():
    code = """
import sys
from rince.cli import app
try:
    app(["--help"])
except SystemExit:
    pass
print("torch" in sys.modules, "pydantic" in sys.modules)
"""
    assert output_of(code).split()[-2:] == ["False", "False"]


def test_the_command_line_reads_recipes_without_torch():
    """So that `rince ls` and a mistyped name answer at once."""
    assert output_of("import sys; import rince.cli, rince.config.reading; print('torch' in sys.modules)") == "False\n"
