"""`rince ranks audit` on ranks that can be counted by hand, and training with ranks between samples."""

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from rince.analysis.audit import audit, draw_similarities
from rince.config import load_recipe
from rince.sources.images import load_images
from rince.train.checkpoint import load_checkpoint
from train.tiny import rince, write_recipe

NAMES = load_images("fashion", "train", limit=10).class_names


@pytest.fixture
def recipe(tmp_path):
    """T-shirt and shirt are alike, sandal and sneaker less so, bag and coat wrongly so; nobody else."""
    matrix = np.full((10, 10), 0.1, dtype=np.float32)
    np.fill_diagonal(matrix, 1)
    for a, b, value in (("T-shirt/top", "Shirt", 0.8), ("Sandal", "Sneaker", 0.6), ("Bag", "Coat", 0.7)):
        one, other = NAMES.index(a), NAMES.index(b)
        matrix[one, other] = matrix[other, one] = value
    np.save(tmp_path / "s.npy", matrix)
    ranks = {"kind": "similarity", "file": str(tmp_path / "s.npy"), "thresholds": [0.5]}
    return write_recipe(tmp_path, ranks=ranks)


def test_an_audit_counts_what_there_is(recipe):
    found = audit(load_recipe(recipe), "fashion")
    first, second = found.ranks
    assert (first.classes, first.empty) == (1.0, [])
    assert second.classes == pytest.approx(0.6)
    assert sorted(second.empty) == sorted(["Trouser", "Pullover", "Dress", "Ankle boot"])
    # Of 64 in the bank, 6.4 are of each class; six classes have one other class as rank 2.
    assert second.positives == pytest.approx(6.4 * 0.6)
    assert found.asymmetric == []
    assert found.tightest[0][2] == pytest.approx(0.8)
    assert [set(pair[:2]) for pair in found.oddest] == [{"Bag", "Coat"}]
    # Fashion's groups and departments have 6 * 5 + 4 * 3 ordered pairs; four of the six positives are among them.
    assert found.agreement == (pytest.approx(4 / 6), pytest.approx(4 / 42))
    line = next(line for line in found.thresholds if line.threshold == 0.65)
    assert (line.pairs, line.empty) == (2, 6)
    assert line.precision == pytest.approx(0.5)


def test_the_command_shows_and_draws_it(recipe, tmp_path):
    shown = rince("ranks", "audit", recipe, "--reference", "fashion", "--picture", tmp_path / "audit.png").stdout
    assert "empty for 4 classes" in shown
    assert "oddest positives: Coat ~ Bag 0.70" in shown
    assert "proposed:" in shown
    with Image.open(tmp_path / "audit.png") as picture:
        assert picture.width > 1000


def test_a_tree_needs_no_similarity(tmp_path):
    shown = rince("ranks", "audit", write_recipe(tmp_path)).stdout
    assert "rank 3: " in shown
    assert "threshold" not in shown


def test_ranks_between_samples_train_with_sample_ids_in_the_bank(tmp_path):
    images = load_images("fashion", "train", limit=200)
    np.save(tmp_path / "v.npy", images.images.flatten(1).float().numpy())
    recipe = write_recipe(
        tmp_path,
        ranks={"kind": "embedding", "file": str(tmp_path / "v.npy"), "per": "sample", "nearest": [5, 20]},
    )
    shown = rince("train", recipe, "--dry-run").stdout
    assert "2: 1.6 positives expected in the bank; none for 0 % of samples" in shown  # 5 of 200 samples, bank of 64
    rince("train", recipe, "--out", tmp_path / "run")
    labels = load_checkpoint(tmp_path / "run" / "last.ckpt", {"bank"})["bank"]["labels"]
    assert len(labels.unique()) == len(labels) == 64  # no class has a label this high
    assert int(labels.max()) > 100
    done = rince("ranks", "audit", recipe, check=False)
    assert done.returncode == 2
    assert "ranks samples, not classes" in done.stderr
    assert torch.isfinite(load_checkpoint(tmp_path / "run" / "last.ckpt", {"bank"})["bank"]["keys"]).all()


@pytest.mark.parametrize(("classes", "scale"), [(4, "linear"), (80, "log")])
def test_a_few_pairs_have_an_axis_of_whole_numbers(classes, scale):
    vectors = torch.nn.functional.normalize(torch.randn(classes, 5, generator=torch.Generator().manual_seed(0)), dim=1)
    axes = Figure().subplots()
    draw_similarities(vectors @ vectors.T, 0.4, axes)
    assert axes.get_yscale() == scale
    assert scale == "log" or all(tick == round(tick) for tick in axes.get_yticks())
    assert sum(bar.get_height() for bar in axes.patches) == classes * (classes - 1)
