"""Metrics as objects: each keeps what it claims, each name belongs to one of them, and `judge` against other libraries."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, recall_score, roc_auc_score
from sklearn.mixture import GaussianMixture
from torch.nn.functional import one_hot

import rince
from rince import TableRanks
from rince.errors import DataError, ShapeError
from rince.evaluation import evidence, mean_over_classes, ndcg, rank_order_accuracy
from rince.evaluation.judge import judge
from rince.evaluation.metrics import METRICS, parse, values_of
from rince.evaluation.metrics.accuracy import BEST_TEST, PROBE
from rince.evaluation.metrics.detection import AUROC
from rince.evaluation.metrics.metric import Named
from rince.evaluation.metrics.search import CHANCE, MAP
from rince.evaluation.metrics.shape import ALIGNMENT, SIMILARITY, TRAIN_UNIFORMITY, UNIFORMITY
from rince.evaluation.samples import Samples, ranks_of

FAMILIES = ("finetune", "probe", "retrieval", "ranking", "outliers", "geometry")
CLASSES, WIDTH = 8, 32
TRAINED = TableRanks.from_tree([f"{n // 4}/{n // 2}/{n}" for n in range(CLASSES)])  # one more rank than the levels


def samples(seed, each, tight):
    """Classes in groups of two, those in tops of four; `tight` is how much of a vector says where it belongs."""
    labels = torch.arange(CLASSES).repeat(each)
    parts = [one_hot(labels // size, CLASSES) * weight for size, weight in ((1, 1.0), (2, 0.8), (4, 0.6))]
    own = torch.randn(CLASSES, WIDTH - 3 * CLASSES, generator=torch.Generator().manual_seed(5))[labels]
    noise = torch.randn(len(labels), WIDTH, generator=torch.Generator().manual_seed(seed))
    features = tight * torch.cat([own, *parts], dim=1) + (1 - tight) * noise
    return Samples(features, {"class": labels, "group": labels // 2}, features[:, :9] + 0.01)


def uneven(test):
    """Without five samples, two of them of the first class."""
    left = torch.cat([torch.arange(1, CLASSES), torch.arange(CLASSES + 4, 6 * CLASSES)])
    levels = {name: labels[left] for name, labels in test.levels.items()}
    return Samples(test.features[left], levels, test.embeddings[left])


def strangers(tight):
    """Far from all classes, or anywhere."""
    return (1 - tight) * torch.randn(30, WIDTH, generator=torch.Generator().manual_seed(8)) - tight


def verdict(tight, **options):
    """Judged with all the evidence there can be."""
    train, test = samples(0, 12, tight), uneven(samples(1, 6, tight))
    wrong = torch.randint(0, CLASSES, test.labels.shape, generator=torch.Generator().manual_seed(2))
    given = {
        "outliers": {
            "far/off": strangers(tight),
            "b": strangers(tight),
        },
        "probe": "paper",
        "rank_source": TRAINED,
        "rank_name": "a tree of three",
        "classified": test.labels if tight > 0.5 else wrong,
        "classifier": "by hand",
        "gains": 1.0 + (test.labels[:, None] == train.labels) + (test.labels[:, None] // 4 == train.labels // 4),
    }
    return judge(train, test, **given | options)


@pytest.fixture(scope="module")
def good():
    return verdict(0.95)


@pytest.fixture(scope="module")
def bad():
    return verdict(0.0)


@pytest.fixture(scope="module")
def collapsed():
    train, test = samples(0, 12, 0.0), samples(1, 6, 0.0)
    return judge(Samples(train.features + 30, train.levels), Samples(test.features + 30, test.levels))


# Every metric keeps what it claims.


def test_every_measured_name_is_of_exactly_one_metric_and_every_metric_is_measured(good, bad):
    seen, protocol = set(), bad.protocol | good.protocol
    assert "ranking/mistake_severity" not in good.metrics  # there are no mistakes
    for name, value in (bad.metrics | good.metrics).items():
        metric = parse(name).metric
        readers = [m for m in METRICS if m.read(name)]
        assert readers == [metric], name
        assert parse(name).name == name
        assert protocol[parse(name).protocol]
        assert "{" not in protocol[parse(name).protocol]
        assert isinstance(value, (float, int))
        seen.add(metric)
    assert seen == set(METRICS)
    assert len(METRICS) == len({metric.name for metric in METRICS}) == 29


@pytest.mark.parametrize("metric", [metric for metric in METRICS if metric.direction], ids=lambda metric: metric.name)
def test_directions_are_right(metric, good, bad, collapsed):
    # Tight classes use less of the sphere than noise does, so evenness is told apart from collapse.
    better, worse = (bad, collapsed) if metric in (UNIFORMITY, TRAIN_UNIFORMITY) else (good, bad)
    first, second = (values_of(metric, found.metrics) for found in (better, worse))
    assert first
    assert first.keys() == second.keys()
    for named, value in first.items():
        gain = value - second[named]
        assert gain > 0.02 if metric.direction == "up" else gain < -0.02, named.name


def test_what_has_no_direction_says_so():
    without = {metric.name for metric in METRICS if metric.direction is None}
    assert without == {
        *("probe/best_test_accuracy", "probe/best_test_epoch", "geometry/similarity"),
        *("retrieval/chance@1", "ranking/mistake_severity"),
    }
    assert all(metric.direction for metric in METRICS if metric.group and metric is not CHANCE)


def test_nothing_is_measured_without_evidence():
    train, test = samples(0, 3, 0.5), samples(1, 1, 0.5)
    found = judge(Samples(train.features, {"class": train.labels}), Samples(test.features, {"class": test.labels}))
    missing = {metric.name for metric in METRICS} - {parse(name).metric.name for name in found.metrics}
    assert missing == {
        *("finetune/accuracy", "probe/best_test_accuracy", "probe/best_test_epoch", "geometry/alignment"),
        *("ranking/trained/ndcg", "ranking/trained/order_accuracy", "ranking/given/ndcg"),
        *("ranking/hierarchical_ap", "ranking/asi", "ranking/ancestor_height", "ranking/mistake_severity"),
        *("outliers/auroc", "outliers/fpr@95", "outliers/auroc_tied", "outliers/auroc_neighbours"),
        *("probe/class_mean_accuracy", "retrieval/class_mean_recall@1", "retrieval/class_mean_map"),
    }
    assert found.protocol.keys() == {metric.name for metric in METRICS} - missing


# Names.


@pytest.mark.parametrize(
    ("name", "metric", "qualifier", "on", "heading", "group", "column"),
    [
        ("probe/accuracy", PROBE, "", "", "probe accuracy", "Probe", "accuracy %"),
        ("probe/accuracy on kth", PROBE, "", "kth", "probe accuracy on kth", "Probe on kth", "accuracy %"),
        ("retrieval/class/map", MAP, "class", "", "mAP class", "Same class", "mAP"),
        ("retrieval/class/map on a b", MAP, "class", "a b", "mAP class on a b", "Same class on a b", "mAP"),
        ("retrieval/based on hue/map on x on y", MAP, "based on hue", "x on y", "mAP based on hue on x on y",
         "Same based on hue on x on y", "mAP"),
        ("outliers/imagenet-outliers-*/auroc", AUROC, "imagenet-outliers-*", "", "AUROC imagenet-outliers-*",
         "Outliers: imagenet-outliers-*", "AUROC %"),
        ("geometry/similarity/before/rank12 on x", SIMILARITY, "before/rank12", "x", "similarity before/rank12 on x",
         "", "similarity"),
        ("probe/accuracy after the head", PROBE, "", "", "probe accuracy, after the head", "Probe, after the head",
         "accuracy %"),
        ("retrieval/class/map after the head on a b", MAP, "class", "a b", "mAP class on a b, after the head",
         "Same class on a b, after the head", "mAP"),
        ("geometry/similarity/alignment", ALIGNMENT, "similarity", "", "alignment similarity", "", "alignment"),
    ],
)  # fmt: skip
def test_a_name_is_taken_apart_in_one_place(name, metric, qualifier, on, heading, group, column):
    found = parse(name)
    assert found == (metric, qualifier, on, "after" if " after the head" in name else "before")
    assert (found.name, found.heading, found.group, found.column) == (name, heading, group, column)


@given(
    st.sampled_from([m for m in METRICS if m is not SIMILARITY]),
    st.text(min_size=1) | st.just("x after the head"),
    st.text(min_size=1) | st.just("x after the head"),
    st.booleans(),
)
def test_any_level_any_set_and_both_places_come_back(metric, qualifier, on, after):
    place = "after" if after and metric.both_places else "before"
    named = Named(metric, qualifier if "{}" in metric.pattern else "", on.replace("/", "-"), place)
    assert parse(named.name) == named
    own = named._replace(on="")
    assert parse(own.name) == own


@pytest.mark.parametrize(
    "name",
    ["probe/kth/accuracy", "retrieval/map", "retrieval//map", "accuracy", "", "probe/accuracy on ", "ranking/class/ndcg",
     "probe/accuracy on a/b", "probe/accuracy on a after the head/b", "geometry/uniformity after the head",
     "finetune/accuracy after the head", "probe/accuracy  after the head"],
)  # fmt: skip
def test_an_unknown_name_is_refused(name):
    with pytest.raises(
        DataError, match=r"there is no metric .*retrieval/\{\}/recall@1.*run `rince evaluate` again"
    ) as e:
        parse(name)
    assert repr(name) in str(e.value)


def test_no_other_file_knows_a_name():
    root = Path(rince.__file__).parent
    files = [f for f in root.rglob("*.py") if f.parent.name != "metrics"]
    assert len(files) > 80
    literal = re.compile(rf"[\"']({'|'.join(FAMILIES)})/[\w{{@]")
    assert set(FAMILIES) == {metric.pattern.split("/")[0] for metric in METRICS}
    assert [f.name for f in files if literal.search(f.read_text("utf-8"))] == []


# `judge` against other libraries, and what it does only once.


def test_search_is_judged_as_scikit_learn_does():
    train, test = samples(0, 12, 0.3), samples(1, 6, 0.3)
    metrics = judge(train, test).metrics
    unit = [torch.nn.functional.normalize(x.features, dim=1).double().numpy() for x in (test, train)]
    cosines = unit[0] @ unit[1].T
    order = np.argsort(-cosines, axis=1)
    for level in ("class", "group"):
        hits = test.levels[level].numpy()[:, None] == train.levels[level].numpy()
        found = np.take_along_axis(hits, order, axis=1)
        expected = {f"recall@{k}": found[:, :k].any(axis=1).mean() for k in (1, 5)}
        expected["map"] = np.mean([average_precision_score(*both) for both in zip(hits, cosines, strict=True)])
        assert len(set(expected.values())) == 3
        for leaf, value in expected.items():
            assert metrics[f"retrieval/{level}/{leaf}"] == pytest.approx(value, abs=1e-6)


def test_means_over_classes_are_those_of_scikit_learn():
    train, test = samples(0, 12, 0.3), uneven(samples(1, 6, 0.3))
    metrics = judge(train, test).metrics
    unit = [torch.nn.functional.normalize(x.features, dim=1).double().numpy() for x in (test, train)]
    cosines = unit[0] @ unit[1].T
    for level in ("class", "group"):
        known, labels = train.levels[level].numpy(), test.levels[level].numpy()
        wanted = recall_score(labels, known[cosines.argmax(axis=1)], average="macro")
        assert metrics[f"retrieval/{level}/class_mean_recall@1"] == pytest.approx(wanted, abs=1e-9)
        assert abs(wanted - metrics[f"retrieval/{level}/recall@1"]) > 1e-4
        hits = labels[:, None] == known
        of_queries = [average_precision_score(*both) for both in zip(hits, cosines, strict=True)]
        of_classes = [
            np.mean([v for v, label in zip(of_queries, labels, strict=True) if label == c]) for c in set(labels)
        ]
        assert metrics[f"retrieval/{level}/class_mean_map"] == pytest.approx(np.mean(of_classes), abs=1e-6)
    right = evidence.Evidence(train, test, {}).probed.right
    of_classes = [float(right[test.labels == c].double().mean()) for c in range(CLASSES)]
    assert metrics["probe/class_mean_accuracy"] == pytest.approx(np.mean(of_classes), abs=1e-9)
    assert not [name for name in judge(train, samples(1, 6, 0.3)).metrics if "class_mean" in name]  # even: the same


def test_a_mean_over_classes_leaves_out_what_does_not_count():
    nan = float("nan")
    assert mean_over_classes([1.0, nan, 0.0, 0.5, nan], labels=[3, 3, 3, 7, 9]) == 0.5
    with pytest.raises(DataError, match="no sample counts"):
        mean_over_classes([nan], labels=[0])
    with pytest.raises(ShapeError, match="one number and one integer per sample"):
        mean_over_classes([1.0, 0.0], labels=[0])


def test_outliers_are_judged_as_scikit_learn_does(good):
    train, test = samples(0, 12, 0.6), samples(1, 6, 0.6)
    unit = [torch.nn.functional.normalize(x, dim=1).double().numpy() for x in
            (train.features, test.features, strangers(0.1))]  # fmt: skip
    metrics = judge(train, test, outliers={"o": strangers(0.1)}).metrics
    labels = train.labels.numpy()
    fitted = [GaussianMixture(1, reg_covar=1e-6).fit(unit[0][labels == n]) for n in range(CLASSES)]
    means = np.stack([unit[0][labels == n].mean(axis=0) for n in range(CLASSES)])
    centred = unit[0] - means[labels]
    precision = np.linalg.inv(centred.T @ centred / len(centred) + 1e-6 * np.eye(len(means.T)))
    scores = {
        "auroc": [np.max([g.score_samples(x) for g in fitted], axis=0) for x in unit[1:]],
        "auroc_tied": [
            np.max([-np.einsum("nd,de,ne->n", x - m, precision, x - m) for m in means], axis=0) for x in unit[1:]
        ],
        "auroc_neighbours": [np.sort(x @ unit[0].T, axis=1)[:, -12] for x in unit[1:]],  # of a class
    }
    for leaf, (inliers, outliers) in scores.items():
        truth = np.repeat([1, 0], [len(inliers), len(outliers)])
        expected = roc_auc_score(truth, np.concatenate([inliers, outliers]))
        assert 0.6 < expected < 1, leaf  # arguments that change places would give less than a half
        assert metrics[f"outliers/o/{leaf}"] == pytest.approx(expected, abs=1e-3), leaf
    inliers, outliers = scores["auroc"]
    threshold = np.sort(inliers)[::-1][int(np.ceil(0.95 * len(inliers))) - 1]
    assert metrics["outliers/o/fpr@95"] == pytest.approx((outliers >= threshold).mean(), abs=0.05)


def test_similarities_are_means_over_the_pairs_of_classes_of_a_rank():
    train, test = samples(0, 2, 0.4), samples(1, 6, 0.4)
    unit = torch.nn.functional.normalize(test.features, dim=1).double()
    cosines, label, expected = unit @ unit.T, test.labels.tolist(), {}
    for a in range(CLASSES):
        for b in range(CLASSES):
            name = "rank1" if a == b else "rank2" if a // 2 == b // 2 else "negatives"
            pairs = [(i, j) for i in range(len(label)) for j in range(len(label)) if (label[i], label[j]) == (a, b)]
            mean = np.mean([float(cosines[i, j]) for i, j in pairs if i != j])
            expected.setdefault(f"geometry/similarity/before/{name}", []).append(mean)
    found = values_of(SIMILARITY, judge(train, Samples(test.features, test.levels)).metrics)
    assert {named.name: value for named, value in found.items()} == pytest.approx(
        {name: np.mean(means) for name, means in expected.items()}, abs=1e-6
    )


def test_the_ranks_of_training_are_measured_beside_those_of_the_levels():
    train, test = samples(0, 12, 0.4), samples(1, 6, 0.4)
    vectors = {"queries": test.features, "gallery": train.features}
    labels = {"query_labels": test.labels, "gallery_labels": train.labels}
    found = judge(train, test, rank_source=TRAINED, rank_name="a tree of three")
    for prefix, source in (("", ranks_of(train, test)), ("trained/", TRAINED)):
        wanted = (
            ndcg(**vectors, **labels, rank_source=source),
            rank_order_accuracy(**vectors, **labels, rank_source=source),
        )
        assert found.metrics[f"ranking/{prefix}ndcg"] == pytest.approx(wanted[0], abs=1e-9)
        assert found.metrics[f"ranking/{prefix}order_accuracy"] == pytest.approx(wanted[1], abs=1e-9)
    assert found.metrics["ranking/ndcg"] != found.metrics["ranking/trained/ndcg"]
    assert found.protocol["ranking/trained/ndcg"].endswith("; ranks: those of training, a tree of three")
    assert found.protocol["ranking/ndcg"].endswith("; ranks: from the levels of the taxonomy")


def test_ranks_of_training_that_are_those_of_the_levels_add_nothing():
    train, test = samples(0, 12, 0.4), samples(1, 6, 0.4)
    same = TableRanks.from_superclasses([n // 2 for n in range(CLASSES)])
    assert judge(train, test, rank_source=same).metrics == judge(train, test).metrics


def test_a_classifier_is_judged_by_its_answers():
    train, test = samples(0, 12, 0.4), samples(1, 6, 0.4)
    answers = test.labels.clone()
    answers[:9] = (answers[:9] + 1) % CLASSES
    found = judge(train, test, classified=answers, classifier="by hand, 3 epochs")
    assert found.metrics["finetune/accuracy"] == 39 / 48
    assert found.protocol["finetune/accuracy"] == "by hand, 3 epochs"


def test_another_set_stands_at_the_end_of_every_name():
    train, test, far = samples(0, 12, 0.4), samples(1, 6, 0.4), {"o": strangers(0.5)}
    own, other = judge(train, test, outliers=far), judge(train, test, outliers=far, on="films on ice")
    assert {f"{name} on films on ice": value for name, value in own.metrics.items()} == other.metrics
    assert own.queries.keys() == {name.removesuffix(" on films on ice") for name in other.queries}
    assert own.protocol == other.protocol
    levels = ["class", "group", "class after the head", "group after the head"]
    assert list(other.figures["curves"]) == [f"{level} on films on ice" for level in levels]
    assert list(other.figures["outliers"]) == ["o on films on ice"]
    for found in (own, other):
        assert [named.where for named in values_of(MAP, found.metrics)] == list(found.figures["curves"])
        assert [named.where for named in values_of(AUROC, found.metrics)] == list(found.figures["outliers"])


def test_one_sort_and_one_fit_serve_all_metrics(monkeypatch):
    calls = []
    for name in ("ranked_retrieval", "ClassGaussians", "neighbour_score", "linear_probe", "class_similarity"):
        whole = getattr(evidence, name)
        counted = lambda *a, whole=whole, name=name, **k: calls.append(name) or whole(*a, **k)  # noqa: E731
        monkeypatch.setattr(evidence, name, counted)
    verdict(0.4, rank_source=None, probe="fast")
    once = {"ranked_retrieval": 1, "ClassGaussians": 2, "neighbour_score": 2, "linear_probe": 1, "class_similarity": 2}
    both = {name: 2 * times for name, times in once.items()} | {"class_similarity": 2}
    after = {name: strangers(0.4)[:, :9] for name in ("far/off", "b")}
    for options, expected in (({"after_head": False}, once), ({"outlier_embeddings": after}, both)):
        calls.clear()
        verdict(0.4, rank_source=None, probe="fast", **options)
        assert {name: calls.count(name) for name in calls} == expected


def test_progress_names_the_metric_and_comes_to_its_end():
    told = []
    train, test = samples(0, 12, 0.4), samples(1, 6, 0.4)
    judge(train, test, tell=lambda *what: told.append(what))
    named = [what for what, _, _ in told if not re.match(r"probe \d", what)]
    after = [f"{metric.name} after the head" for metric in METRICS if metric.both_places]
    assert named == [*(metric.name for metric in METRICS), *after, "done"]
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert told[-1] == ("done", 49, 49)
    probing = {done for what, done, _ in told if re.match(r"probe \d", what)}
    assert probing == {METRICS.index(PROBE), len(METRICS)}


def test_the_papers_probe_measures_its_best_epoch_too(good):
    assert BEST_TEST.name in good.metrics
    assert good.metrics["probe/best_test_accuracy"] == good.metrics["probe/accuracy"] == 1
    assert good.protocol["probe/accuracy"].startswith("SGD, learning rate 5")
    assert verdict(0.4, probe="fast").protocol["probe/accuracy"].startswith("logistic regression")


# Both places, and every query.


def test_after_the_head_is_what_embeddings_alone_would_give():
    train, test = samples(0, 12, 0.4), samples(1, 6, 0.4)
    far, far_after = {"o": strangers(0.5)}, {"o": strangers(0.3)[:, :9]}
    found = judge(
        train, test, outliers=far, outlier_embeddings=far_after, rank_source=TRAINED, probe="paper", rank_name="a tree"
    )
    alone = judge(
        *(Samples(each.embeddings, each.levels) for each in (train, test)), outliers=far_after, rank_source=TRAINED
    )
    after = {named.name: value for name, value in found.metrics.items() if (named := parse(name)).place == "after"}
    expected = {f"{name} after the head": v for name, v in alone.metrics.items() if parse(name).metric.both_places}
    assert len(expected) == 6 + 4 + 4 + 1 + 4
    assert after == expected
    assert sum(value != found.metrics[name.removesuffix(" after the head")] for name, value in after.items()) > 12
    before = judge(train, test, outliers=far, rank_source=TRAINED, probe="paper", after_head=False)
    assert before.metrics == {name: value for name, value in found.metrics.items() if name not in after}
    assert {n: f for n, f in found.figures["curves"].items() if n in before.figures["curves"]} == before.figures[
        "curves"
    ]


def test_protocols_say_which_place(good):
    train, test = samples(0, 12, 0.4), samples(1, 6, 0.4)
    protocol = judge(
        train, test, outliers={"o": strangers(0.4)}, outlier_embeddings={"o": strangers(0.4)[:, :9]}
    ).protocol
    both = [metric.name for metric in METRICS if metric.both_places and metric.name in protocol]
    assert len(both) == 14
    for name in both:
        assert "features before the head" in protocol[name]
        assert "embeddings after the head" not in protocol[name]
        assert "embeddings after the head" in protocol[f"{name} after the head"]
        assert "features before the head" not in protocol[f"{name} after the head"]
    # The paper's probe is of features; after the head the fast one is enough.
    assert good.protocol["probe/accuracy"].startswith("SGD")
    assert good.protocol["probe/accuracy after the head"].startswith("logistic regression")


def test_without_embeddings_there_is_one_place():
    train, test = samples(0, 12, 0.4), samples(1, 6, 0.4)
    for left in ((Samples(train.features, train.levels), test), (train, Samples(test.features, test.levels))):
        assert all(parse(name).place == "before" for name in judge(*left).metrics)


def test_means_over_queries_are_the_numbers(good):
    of_means = {named.metric.name for name in good.queries if (named := parse(name))}
    assert of_means == {
        *("finetune/accuracy", "probe/accuracy", "retrieval/recall@1", "retrieval/recall@5", "retrieval/map"),
        *("ranking/ndcg", "ranking/order_accuracy", "ranking/trained/ndcg", "ranking/trained/order_accuracy"),
        *("ranking/hierarchical_ap", "ranking/asi", "ranking/ancestor_height", "ranking/given/ndcg"),
        *("outliers/auroc", "outliers/auroc_tied", "outliers/auroc_neighbours"),
        *("probe/class_mean_accuracy", "retrieval/class_mean_recall@1", "retrieval/class_mean_map"),
    }
    assert "retrieval/group/map after the head" in good.queries
    for name, values in good.queries.items():
        assert values.shape == (6 * CLASSES - 5,)
        assert float(values.nanmean()) == good.metrics[name]


def test_every_query_is_judged_by_itself():
    train, test = samples(0, 12, 0.3), samples(1, 6, 0.3)
    queries = judge(train, test, outliers={"o": strangers(0.2)}).queries
    for place, vectors in (("", lambda each: each.features), (" after the head", lambda each: each.embeddings)):
        unit = [torch.nn.functional.normalize(vectors(x), dim=1).double().numpy() for x in (test, train)]
        cosines = unit[0] @ unit[1].T
        hits = test.levels["group"].numpy()[:, None] == train.levels["group"].numpy()
        expected = [average_precision_score(*both) for both in zip(hits, cosines, strict=True)]
        assert queries[f"retrieval/group/map{place}"].numpy() == pytest.approx(np.array(expected), abs=1e-6)
        first = np.take_along_axis(hits, cosines.argmax(axis=1)[:, None], axis=1)[:, 0]
        assert queries[f"retrieval/group/recall@1{place}"].tolist() == first.tolist()
