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


LIBRARY = """
import torch, rince
import torch.nn.functional as F
torch.manual_seed(0)
labels, encoder = torch.arange(12) % 4, torch.nn.Linear(8, 4)
embeddings = F.normalize(torch.randn(12, 8), dim=1).requires_grad_()
source, loss = rince.TableRanks.from_superclasses([0, 0, 1, 1]), rince.RankedInfoNCE.in_((0.1, 0.225))
batch = rince.in_batch(embeddings.view(6, 2, 8).transpose(0, 1), labels[:6], rank_source=source)
value = loss.from_embeddings(batch.queries, batch.candidates, batch.ranks).total
value.backward()
bank = rince.MemoryBank(32, 8, start="random")
bank.push(embeddings.detach(), labels)
twin = rince.MomentumTwin(encoder)
twin.update(encoder)
positions = rince.SampleRanks(torch.randn(12, 2), [1.0], metric="euclidean")
sets = rince.LabelSetRanks([["a"], ["a", "b"], ["c"]], [0.5])
drawn = next(iter(rince.RankedBatchSampler(labels, source, 4, 2)))
ranks = source(labels, labels).fill_diagonal_(rince.EXCLUDED)
cached = rince.CachedLoss(encoder, chunk=3)(
    torch.randn(12, 8), lambda made: loss.from_embeddings(F.normalize(made), F.normalize(made), ranks)
)
seen = [source.fingerprint, positions.fingerprint, sets.fingerprint, drawn]
print(seen, positions(labels, labels).sum(), sets(labels[:3], labels[:3]), f"{value:.4f} {cached.total:.4f}")
print(f"{embeddings.grad.norm():.4f} {bank.similarities(embeddings).norm():.4f}")
"""


@pytest.mark.slow
def test_the_library_does_without_numpy(capsys):
    """Torch does not bring it along, so whoever installs nothing else has none."""
    alone = "import sys, warnings; sys.modules['numpy'] = None; warnings.simplefilter('ignore')\n"
    exec(LIBRARY, {})
    assert output_of(alone + LIBRARY) == capsys.readouterr().out
