"""Answers from a gallery: evidence and thresholds against loops, bounds against SciPy, and the promise by simulation."""

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from rince import ConfigError, DataError
from rince.evaluation import answers
from rince.evaluation.answers import (
    Calibration,
    Thresholds,
    answered,
    calibrate,
    calibration_of,
    evidence_of,
    lower_bound,
    thresholds_of,
    told,
)
from rince.evaluation.index import Gallery, search
from rince.evaluation.nearest import nearest, nearest_in_blocks

CLASSES, GROUP = 6, torch.tensor([0, 0, 1, 1, 2, 2])


def some(number, seed=0, noise=0.5, dim=6):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (number,), generator=generator)
    means = torch.randn(CLASSES, dim, generator=torch.Generator().manual_seed(1))
    means += 2 * torch.randn(3, dim, generator=torch.Generator().manual_seed(2))[GROUP]
    vectors = means[labels] + noise * torch.randn(number, dim, generator=generator)
    return torch.nn.functional.normalize(vectors, dim=1), labels


def gallery(vectors, labels, blocks=3, trained=None, **more):
    classes, groups = [f"g{GROUP[n]}/c{n}" for n in range(CLASSES)], [f"g{n}" for n in range(3)]
    levels = {"class": (labels, classes), "group": (GROUP[labels], groups)}
    given = {"levels": levels, "trained": lambda: trained} | more
    parts = (str, lambda row: "", lambda queries: [set() for _ in range(len(queries))])
    return Gallery("made up", len(vectors), lambda: iter(vectors.chunk(blocks)), place=parts[0], text=parts[1],
                   own_rows=parts[2], **given)  # fmt: skip


@pytest.mark.parametrize("blocks", [1, 2, 7, 50])
@pytest.mark.parametrize("tied", [False, True])
def test_block_by_block_is_the_whole_search(blocks, tied):
    vectors, _ = some(50)
    vectors = torch.where(vectors > 0, 0.25, -0.25) if tied else vectors  # exact in float32
    queries = vectors[:9] if tied else some(9, seed=3)[0]
    found = nearest_in_blocks(queries, iter(vectors.chunk(blocks)), 8)
    assert found.rows.tolist() == nearest(queries, vectors, 8).tolist()
    expected = np.take_along_axis((queries.double() @ vectors.double().T).numpy(), found.rows.numpy(), axis=1)
    assert found.cosines.numpy() == pytest.approx(expected, abs=1e-6)
    assert nearest_in_blocks(queries, iter(vectors.chunk(blocks)), 80).rows.shape == (9, 50)


def test_a_search_leaves_out_the_query_itself():
    vectors, labels = some(40)
    found = search(gallery(vectors, labels), vectors[:2], 5, [{0, 7}, {1}])
    cosines = (vectors[:2] @ vectors.T).numpy()
    for query, (items, own) in enumerate(zip(found, ({0, 7}, {1}), strict=True)):
        expected = [row for row in np.argsort(-cosines[query]) if row not in own][:5]
        assert [row for row, _ in items] == expected


def naive_evidence(items, groups):
    votes, total = {}, sum(1 / place**2 for place in range(1, len(items) + 1))
    for place, (row, cosine) in enumerate(items, 1):
        votes[int(groups[row])] = votes.get(int(groups[row]), 0) + cosine / place**2 / total
    return max(votes.items(), key=lambda vote: vote[1])


def test_evidence_is_what_a_loop_counts():
    vectors, labels = some(60, noise=1.5)
    found = search(gallery(vectors, labels), some(20, seed=4, noise=1.5)[0], 7, [set()] * 20)
    evidence = evidence_of(found, [labels, GROUP[labels]])
    for query, items in enumerate(found):
        assert float(evidence.inlier[query]) == pytest.approx(np.mean([cosine for _, cosine in items]), abs=1e-6)
        for level, groups in enumerate((labels, GROUP[labels])):
            group, strength = naive_evidence(items, groups)
            assert int(evidence.group[query, level]) == group
            assert float(evidence.strength[query, level]) == pytest.approx(strength, abs=1e-6)
    assert (evidence.strength[:, 1] >= evidence.strength[:, 0] - 1e-6).all()  # a group has all votes of its classes


def test_every_item_is_asked_for_as_if_it_were_not_there():
    vectors, labels = some(60, noise=1.2)
    found = calibrate(gallery(vectors, labels), 5)
    assert found.levels == ["class", "group"]
    assert (found.neighbours, found.trained, len(found.inlier)) == (5, None, 60)
    for row in range(60):
        others = [other for other in range(60) if other != row]
        cosines = (vectors[row] @ vectors[others].T).tolist()
        near = sorted(zip(others, cosines, strict=True), key=lambda item: -item[1])[:5]
        assert found.inlier[row] == pytest.approx(np.mean([cosine for _, cosine in near]), abs=2e-5)
        for level, groups in enumerate((labels, GROUP[labels])):
            group, strength = naive_evidence(near, groups)
            assert found.strength[row][level] == pytest.approx(strength, abs=2e-5)
            assert found.right[row][level] == (group == int(groups[row]))
    assert 0 < np.mean(found.right) < 1


def test_what_was_trained_on_is_left_out_if_enough_is_left(monkeypatch):
    vectors, labels = some(60)
    trained = torch.arange(60) < 45
    monkeypatch.setattr(answers, "ENOUGH", 15)
    found = calibrate(gallery(vectors, labels, trained=trained), 5)
    assert (len(found.inlier), found.trained) == (15, 0)
    monkeypatch.setattr(answers, "ENOUGH", 16)
    found = calibrate(gallery(vectors, labels, trained=trained), 5)
    assert (len(found.inlier), found.trained) == (60, 45)
    lines = told(thresholds_of(found), found, 0.95)
    assert lines[-1].startswith("45 of the 60 items it was calibrated on were trained on")
    monkeypatch.setattr(answers, "ASKED", 9)
    assert len(calibrate(gallery(vectors, labels), 5).inlier) == 9


@pytest.mark.parametrize(("right", "number"), [(0, 10), (1, 10), (59, 59), (95, 100), (999, 1000)])
def test_the_bound_is_that_of_scipy(right, number):
    expected = binomtest(right, number).proportion_ci(0.90, "exact").low
    assert lower_bound(right, number) == pytest.approx(expected, abs=1e-9)


def test_the_promise_is_kept_where_the_truth_is_known():
    """Evidence s is uniform and right with probability s ** 0.2: above t, the precision is (1 - t ** 1.2) / 1.2 (1 - t)."""
    random, broken, certain = np.random.default_rng(0), 0, 0
    for _ in range(200):
        strength = random.random(1500)
        right = random.random(1500) < strength**0.2
        both = {"strength": strength[:, None].tolist(), "right": right[:, None].tolist()}
        found = thresholds_of(Calibration(["class"], 5, [1.0] * 1500, trained=None, **both), precision=0.9)
        threshold = found.levels[0]
        assert threshold.bound >= 0.9 or not threshold.is_certain
        if threshold.is_certain:
            certain += 1
            broken += (1 - threshold.least**1.2) / (1.2 * (1 - threshold.least)) < 0.9
    assert certain >= 195
    assert 0 < broken <= 0.08 * certain  # 5 % are allowed; none at all would be too careful


def calibrated(strength, right, inlier=None):
    number = len(strength)
    return Calibration(["class", "group"], 5, inlier or [1.0] * number, strength, right, None)


def test_levels_above_are_calibrated_on_what_is_left():
    """500 items of certain classes, 500 that know their group alone, and 200 that know nothing."""
    strength = [[0.9, 0.95]] * 500 + [[0.3, 0.6]] * 500 + [[0.2, 0.3]] * 200
    right = [[True, True]] * 500 + [[False, True]] * 500 + [[False, False]] * 200
    found = thresholds_of(calibrated(strength, right))
    assert [(each.level, each.least, each.accepted, each.right) for each in found.levels] == [
        ("class", 0.9, 500, 500),
        ("group", 0.6, 500, 500),
    ]
    evidence = answers.Evidence(
        torch.tensor([1.0, 1.0, 1.0, 0.2]),
        torch.tensor([[0.95, 0.97], [0.5, 0.7], [0.1, 0.5], [0.95, 0.97]]),
        torch.zeros(4, 2, dtype=torch.int64),
    )
    assert answered(evidence, found).tolist() == [0, 1, -1, -1]


def test_a_level_that_cannot_be_sure_gives_no_answer():
    strength, right = [[0.9, 0.95]] * 300, [[row % 5 > 0, row % 50 > 0] for row in range(300)]
    calibration = calibrated(strength, right)
    found = thresholds_of(calibration, precision=0.95)
    assert [each.is_certain for each in found.levels] == [False, True]
    lines = told(found, calibration, 0.95)
    assert lines[0] == "class: uncertain; no threshold is sure to be right 95 % of the time"
    assert lines[1].startswith("group: from 0.950 on; 294 of 300 were right, at least 96.")
    few = thresholds_of(calibrated([[0.9, 0.9]] * 58, [[True, True]] * 58))  # 0.05 ** (1 / 58) < 0.95
    assert not any(each.is_certain for each in few.levels)


def test_the_least_inlier_score_leaves_a_share_of_the_gallery():
    strength, right = [[0.9, 0.95]] * 1000, [[True, True]] * 1000
    found = thresholds_of(calibrated(strength, right, [n / 1000 for n in range(1000)]), inliers=0.9)
    assert found.inlier == pytest.approx(0.1)
    assert found.levels[0].accepted == 900


@pytest.mark.parametrize(
    ("given", "match"),
    [({"precision": 1.0}, "precision must be above 0 and below 1, got 1.0"), ({"inliers": 0}, "inliers must be")],
)
def test_shares_that_are_none_are_refused(given, match):
    with pytest.raises(ConfigError, match=match):
        thresholds_of(calibrated([[1.0, 1.0]], [[True, True]]), **given)


def test_a_gallery_that_cannot_answer_is_refused():
    vectors, labels = some(10)
    with pytest.raises(DataError, match="'made up' has no labels"):
        calibrate(gallery(vectors, labels, levels={}))
    with pytest.raises(DataError, match="has 10 samples; 10 neighbours of each need at least 11"):
        calibrate(gallery(vectors, labels))
    noted = calibrate(gallery(vectors, labels), 5).noted()
    assert calibration_of(gallery(vectors, labels, calibration=noted)).noted() == noted
    with pytest.raises(ConfigError, match="was made for 5 neighbours; leave out -k 6"):
        calibration_of(gallery(vectors, labels, calibration=noted), 6)
    assert isinstance(thresholds_of(calibration_of(gallery(vectors, labels, calibration=noted), 5)), Thresholds)
