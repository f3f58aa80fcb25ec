"""What `import rince` promises."""

import subprocess
import sys

import rince

DESIGN = [
    "NEGATIVE",
    "EXCLUDED",
    "RankTerm",
    "ranked_info_nce",
    "ranked_info_nce_from_embeddings",
    "RankedInfoNCE",
    "linear_temperatures",
    "TableRanks",
    "InstanceRanks",
    "view_ranks",
    "MemoryBank",
    "MomentumTwin",
    "RinceError",
    "ConfigError",
    "ShapeError",
    "DataError",
]


def test_every_public_name_of_the_design_is_there():
    assert set(DESIGN) - set(rince.__all__) == set()
    assert all(hasattr(rince, name) for name in rince.__all__)
    assert (rince.NEGATIVE, rince.EXCLUDED) == (0, -1)


def test_import_costs_torch_and_nothing_heavier():
    code = """
import sys, torch
before = {name.partition(".")[0] for name in sys.modules}
import rince
print(*sorted({name.partition(".")[0] for name in sys.modules} - before))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["rince"]
