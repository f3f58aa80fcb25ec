"""The baselines' losses against plain loops and other libraries, and their batches against what they promise."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning.losses import FastAPLoss

from rince import ConfigError, DataError, TableRanks
from rince.losses.fast_ap import fast_ap
from rince.losses.hierarchical_triplet import HierarchicalTriplet
from rince.losses.smoothing import sibling_targets
from rince.losses.triplet import RankedTriplet
from rince.methods.fast_ap import CategoryOrder
from rince.methods.hierarchical_triplet import NeighbourhoodOrder
from rince.sources.feed import Feed

TREE = TableRanks.from_tree(["a/0", "a/1", "a/2", "b/3", "b/4", "c/5"])


def unit(number, dim=6, seed=0):
    vectors = torch.randn(number, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return F.normalize(vectors, dim=1)


def naive_triplet(queries, candidates, ranks, margins):
    """Mean over queries with a positive of the mean over violated triplets, rank by rank."""
    total = []
    for rank, margin in enumerate(margins, start=1):
        values = []
        for q, row in enumerate(ranks.tolist()):
            positives = [j for j, r in enumerate(row) if r == rank]
            opponents = [j for j, r in enumerate(row) if r == 0 or r > rank]
            if not positives:
                continue
            distance = [math.dist(queries[q].tolist(), candidate.tolist()) for candidate in candidates]
            violated = [
                distance[p] - distance[n] + margin
                for p in positives
                for n in opponents
                if distance[p] - distance[n] + margin > 0
            ]
            values.append(sum(violated) / len(violated) if violated else 0.0)
        total.append(sum(values) / len(values) if values else 0.0)
    return total


@pytest.mark.parametrize("seed", range(4))
def test_triplet_equals_a_loop_over_all_triplets(seed):
    generator = torch.Generator().manual_seed(seed)
    queries, candidates = unit(7, seed=seed), unit(30, seed=seed + 50)
    ranks = torch.randint(-1, 3, (7, 30), generator=generator).to(torch.int8)
    ranks[0] = 0  # a query without positives
    ranks[1, ranks[1] == 2] = 1  # and one whose second rank is empty
    expected = naive_triplet(queries, candidates, ranks, (0.5, 1.0))
    loss = RankedTriplet((0.5, 1.0))
    output = loss.from_embeddings(queries.float(), candidates.float(), ranks)
    assert output.per_rank.tolist() == pytest.approx(expected, abs=1e-5)
    assert float(output.total) == pytest.approx(sum(expected), abs=1e-5)
    assert output.queries_used.tolist() == loss.count(ranks).tolist() == [6, 5]


def test_triplet_gradient_is_that_of_the_dense_form():
    ranks = torch.randint(-1, 3, (5, 20), generator=torch.Generator().manual_seed(1)).to(torch.int8)
    similarities = (unit(5) @ unit(20, seed=3).T).float()
    one, other = similarities.clone().requires_grad_(), similarities.clone().requires_grad_()
    RankedTriplet((0.4, 0.9))(one, ranks).total.backward()
    distance, total = (2 - 2 * other).sqrt(), 0.0
    for rank, margin in ((1, 0.4), (2, 0.9)):
        positive, opponent = ranks == rank, (ranks == 0) | (ranks > rank)
        triplets = positive[:, :, None] & opponent[:, None, :]
        violation = ((distance[:, :, None] - distance[:, None, :] + margin) * triplets).clamp(min=0)
        number = (violation > 0).sum((1, 2)).clamp(min=1)
        total = total + (violation.sum((1, 2)) / number).sum() / positive.any(1).sum()
    total.backward()
    assert one.grad == pytest.approx(other.grad, abs=1e-5)


def test_triplet_refuses_margins_that_are_none():
    with pytest.raises(ConfigError, match="margins must be positive"):
        RankedTriplet((0.5, 0.0))


@pytest.mark.parametrize("bins", [5, 10])
def test_fast_ap_equals_pytorch_metric_learning(bins):
    embeddings = unit(24).float()
    labels = torch.randint(0, 4, (24,), generator=torch.Generator().manual_seed(2))
    labels[0] = 9  # a sample without positives
    one, other = embeddings.clone().requires_grad_(), embeddings.clone().requires_grad_()
    ours, theirs = fast_ap(one, labels, bins=bins), FastAPLoss(num_bins=bins)(other, labels)
    ours.backward()
    theirs.backward()
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-5)
    # Theirs differentiates through its own normalisation, so compare what lies in the tangent of the sphere.
    tangent = one.grad - (one.grad * embeddings).sum(1, keepdim=True) * embeddings
    assert tangent == pytest.approx(other.grad, abs=1e-5)


def test_fast_ap_without_any_positive_is_zero_with_a_gradient_of_zero():
    embeddings = unit(3).float().requires_grad_()
    loss = fast_ap(embeddings, torch.arange(3))
    loss.backward()
    assert float(loss.detach()) == 0
    assert embeddings.grad.abs().max() == 0


def test_hierarchical_triplet_equals_a_loop_over_all_triplets():
    labels = torch.tensor([0, 0, 1, 1, 3, 3, 3, 5, 4])
    embeddings = unit(len(labels)).float()
    loss = HierarchicalTriplet(TREE, slack=0.1)
    value = float(loss(embeddings, labels))
    squared = [[math.dist(a, b) ** 2 for b in embeddings.tolist()] for a in embeddings.tolist()]
    within = dict.fromkeys(range(6), 1.0)
    for label in (0, 1, 3):
        rows = [i for i, y in enumerate(labels.tolist()) if y == label]
        own = [squared[i][j] for i in rows for j in rows if i != j]
        within[label] = 0.9 + 0.1 * sum(own) / len(own)
    assert loss.within.tolist() == pytest.approx(list(within.values()), abs=1e-5)
    start, family = sum(within.values()) / 6, "aaabbc"
    violations = []
    for a, ya in enumerate(labels.tolist()):
        for p, yp in enumerate(labels.tolist()):
            for n, yn in enumerate(labels.tolist()):
                if ya == yp and a != p and yn != ya:
                    level = 0 if family[ya] == family[yn] else 1  # of 2: the families, and the root above them
                    margin = 0.1 + start + level * (4 - start) / 2 - within[ya]
                    violations.append(max(0.0, squared[a][p] - squared[a][n] + margin))
    assert value == pytest.approx(sum(violations) / (2 * len(violations)), rel=1e-5)


DEEP = ["animal/dog/poodle", "animal/dog/pug", "animal/cat/manx", "plant/tree/oak", "plant/tree/elm", "rock/ore/iron"]


@pytest.mark.parametrize("one_root", [False, True])
@pytest.mark.parametrize(("slack", "width"), [(0.1, 1.0), (0.0, 0.2), (0.3, 3.5), (2.0, 1.5)])
def test_margins_are_those_of_the_level_at_which_classes_merge(slack, width, one_root):
    """Ge et al.: α = β + d_H - s, where the two classes become one node on the level after H; never above 4 asked."""
    paths = [f"thing/{path}" if one_root else path for path in DEEP]
    loss = HierarchicalTriplet(TableRanks.from_tree(paths), slack=slack)
    loss.within.copy_(width * torch.tensor([0.8, 1.0, 1.1, 0.9, 1.2, 1.0]))
    margins = loss._margins(torch.arange(6))
    start, levels = float(loss.within.mean()), 3  # breeds, kinds, realms, and the root is level 3
    for a, query in enumerate(DEEP):
        for n, negative in enumerate(DEEP):
            if a == n:
                continue
            pair = zip(query.split("/"), negative.split("/"), strict=True)
            common = next(i for i, (one, other) in enumerate(pair) if one != other)
            level = levels - common - 1  # 0 for poodle and pug, 2 for poodle and oak
            asked = slack + start + level * (4 - start) / levels
            assert float(margins[a, n]) == pytest.approx(min(asked, 4) - float(loss.within[a]), abs=1e-5)
            assert float(margins[a, n] + loss.within[a]) <= 4 + 1e-5


def test_the_usual_slack_needs_no_bound():
    """At β = 0.1 and a hierarchy of a few levels what is asked for stays below 4 by itself."""
    loss = HierarchicalTriplet(TableRanks.from_tree(DEEP))
    assert float((loss._margins(torch.arange(6)) + loss.within[:, None]).max()) == pytest.approx(0.1 + 3)


def test_hierarchical_triplet_of_one_class_is_zero():
    embeddings = unit(4).float().requires_grad_()
    loss = HierarchicalTriplet(TREE)(embeddings, torch.zeros(4, dtype=torch.long))
    loss.backward()
    assert float(loss.detach()) == 0


def test_smoothing_spreads_the_mass_over_the_siblings():
    superclass_of = torch.tensor([0, 0, 1, 0, 2, 1])
    targets = sibling_targets(superclass_of, 0.3)
    for own in range(6):
        siblings = [c for c in range(6) if c != own and superclass_of[c] == superclass_of[own]]
        for c in range(6):
            expected = (0.7 if siblings else 1.0) if c == own else 0.3 / len(siblings) if c in siblings else 0.0
            assert float(targets[own, c]) == pytest.approx(expected, abs=1e-7)
    assert torch.equal(sibling_targets(superclass_of, 0.0), torch.eye(6))


@pytest.fixture
def labels():
    return torch.arange(600) % 6


def test_category_batches_hold_two_superclasses_with_their_classes_in_equal_parts(labels):
    order = CategoryOrder(labels, torch.tensor([0, 0, 0, 1, 1, 2]), 60, 2, seed=4)
    assert order.steps_per_epoch == 10
    seen = set()
    for step in range(10):
        ids = order.ids(1, step)
        assert len(ids) == len(set(ids.tolist())) == 60
        classes = labels[ids]
        assert len(order.category_of[classes].unique()) == 2
        counts = classes.bincount()
        assert counts[counts > 0].max() - counts[counts > 0].min() <= 1
        seen.add(tuple(order.category_of[classes].unique().tolist()))
    assert len(seen) > 1
    check_seekable(order)
    with pytest.raises(DataError, match="a batch of 4 categories"):
        CategoryOrder(labels, torch.tensor([0, 0, 0, 1, 1, 2]), 60, 4, seed=4)


def test_neighbourhood_batches_have_close_classes_and_no_sample_twice(labels):
    order = NeighbourhoodOrder(labels, TREE, anchors=4, near=5, random=7, seed=4)
    assert order.batch == 31
    family = torch.tensor([0, 0, 0, 1, 1, 2])
    for step in range(order.steps_per_epoch):
        ids = order.ids(0, step)
        assert len(ids) == len(set(ids.tolist())) == 31
        anchors, near = labels[ids[:4]], labels[ids[4:24]].view(4, 5)
        assert len(anchors.unique()) == 4
        assert (near == near[:, :1]).all()
        assert (family[near[:, 0]] == family[anchors]).all()
        lonely = anchors == 5  # the only class of its superclass
        assert (near[:, 0] != anchors)[~lonely].all()
    check_seekable(order)


def check_seekable(order):
    """A step is the same whenever it is asked for, differs from the others, and is shared out in parts."""
    later = order.ids(2, 3)
    order.ids(0, 0)
    assert torch.equal(later, order.ids(2, 3))
    assert not torch.equal(later, order.ids(2, 4))
    assert not torch.equal(later, order.ids(3, 3))
    samples = SimpleNamespace(labels=torch.zeros(1, dtype=torch.int64))
    feed = Feed(samples, order, seed=0, device=torch.device("cpu"), processes=3)
    epoch, parts = feed.parts(2 * order.steps_per_epoch + 3)
    assert (epoch, len(parts)) == (2, 3)
    assert torch.equal(later, torch.cat(parts))
