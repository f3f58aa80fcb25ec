"""A small ImageNet end to end: class folders named by WordNet ids, JPEGs, ranks from ids, outliers from a list."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from rince.evaluation import ClassGaussians, auroc
from rince.evaluation import evaluate as evaluation
from rince.evaluation.trained import open_trained
from rince.hierarchy import text
from rince.hierarchy.class_lists import read_class_list
from rince.sources.images import load_images
from train.tiny import TINY, rince, write_recipe

INLIERS = ["n02123045", "n02123159", "n02125311", "n01440764"]  # tabby, tiger cat, cougar, tench
OUTLIERS = read_class_list("imagenet-outliers-2")[:2]


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory):
    root = tmp_path_factory.mktemp("data") / "imagenet"
    generator = np.random.default_rng(0)
    for label, wnid in enumerate([*INLIERS, *OUTLIERS]):
        for split, number in (("train", 10), ("val", 4)):
            (root / split / wnid).mkdir(parents=True)
            for i in range(number):
                height, width = generator.integers(100, 200, 2)
                pixels = generator.integers(0, 60, (height, width, 3)) + 30 * label
                Image.fromarray(pixels.astype(np.uint8)).save(root / split / wnid / f"{i}.jpg")
    (root.parent / "inliers.txt").write_text("\n".join(INLIERS))
    (root.parent / "strangers.txt").write_text("\n".join(OUTLIERS))
    return root


def recipe(folder, imagenet, **ranks):
    return write_recipe(
        folder,
        data={"source": str(imagenet), "classes": f"{imagenet.parent}/inliers.txt", "test_split": "val", "workers": 0},
        views={"size": 24},
        train={"epochs": 2, "batch": 16},
        model=TINY["model"] | {"norm": "group"},
        ranks=ranks,
    )


def test_train_and_judge_with_ranks_from_wordnet(imagenet, tmp_path):
    made = recipe(tmp_path, imagenet, kind="wordnet", thresholds=[2, 4])
    shown = rince("ranks", "audit", made).stdout
    assert "4 classes" in shown
    assert "empty for 2 classes (tench, cougar)" in shown  # rank 2: tabby and tiger cat alone
    assert "empty for 1 classes (tench)" in shown
    run = tmp_path / "run"
    rince("train", made, "--out", run)
    rince("evaluate", run, "--outliers", f"{imagenet}:{imagenet.parent}/strangers.txt")
    results = json.loads((run / "results.json").read_text())
    assert results["samples"] == {"imagenet": {"train": 40, "test": 16}}
    train, test, strangers = (
        load_file(run / "features" / f"{name}.safetensors")["features"]
        for name in ("train", "test", "outliers-strangers")
    )
    gaussians = ClassGaussians(
        train, load_images(str(imagenet), "train", classes=f"{imagenet.parent}/inliers.txt").labels
    )
    expected = auroc(gaussians.score(test), gaussians.score(strangers))
    assert results["metrics"]["outliers/strangers/auroc"] == pytest.approx(expected, abs=1e-6)
    done = rince("evaluate", run, "--outliers", f"{imagenet}:imagenet100", check=False)
    assert done.returncode == 2
    assert "lacks 99 of the 100 classes of 'imagenet100'" in done.stderr

    # The paper's probe on images this large crops anew in every epoch, the same for the same epoch.
    trained = open_trained(run)
    features = evaluation._epoch_features(trained, trained.open("train").for_probe())
    first, again, other = features(0), features(0), features(1)
    assert first.shape[0] == 40
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


def test_train_with_ranks_from_the_names_of_ids(imagenet, tmp_path, monkeypatch):
    def embed_names(names, model):
        return torch.tensor([[1.0, 0.3 * ("tench" in name), 0.5 * ("cat" in name)] for name in names])

    monkeypatch.setattr(text, "embed_names", embed_names)
    made = recipe(tmp_path, imagenet, kind="text", thresholds=[0.99])
    shown = rince("train", made, "--dry-run").stdout
    assert "40 training images, 4 classes" in shown
    rince("train", made, "--out", tmp_path / "run")
    assert (tmp_path / "run" / "last.ckpt").exists()


def test_a_class_that_is_no_id_is_refused_before_training(imagenet, tmp_path):
    made = recipe(tmp_path, imagenet, kind="wordnet", file=str(tmp_path / "own.csv"))
    (tmp_path / "own.csv").write_text("child,parent\nn02123045,cat\n")
    done = rince("train", made, "--dry-run", check=False)
    assert done.returncode == 2
    assert "own.csv does not know 3 of 4 classes, 'n01440764' first" in done.stderr
