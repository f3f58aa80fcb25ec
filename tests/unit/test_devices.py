"""The core away from the CPU: the same numbers, nothing mixed, nothing that needs float64, no look at a value."""

import math
import warnings
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from oracles.pretend_device import PretendDevice, PretendTensor, real
from oracles.pretend_device import pretend as moved
from rince import (
    DataError,
    InstanceRanks,
    LabelSetRanks,
    MemoryBank,
    MomentumTwin,
    RankedInfoNCE,
    RankTerm,
    SampleRanks,
    TableRanks,
    in_batch,
    score_ranks,
    two_towers,
    view_ranks,
)
from rince.devices import has_float64, in_float64
from rince.draws import uniform
from rince.evaluation import geometry, outliers, probe, retrieval
from rince.evaluation.vectors import check_labels, unit_vectors
from rince.losses.fast_ap import fast_ap
from rince.losses.hierarchical_triplet import HierarchicalTriplet
from rince.losses.triplet import RankedTriplet
from rince.moco import contrast
from rince.views import tensors as view_tensors
from rince.views.pixels import PixelViews, with_channels


@pytest.fixture
def pretend():
    with PretendDevice(float64=False) as device:  # which refuses the more
        yield device


@pytest.fixture(params=[True, False], ids=["float64", "no-float64"])
def either(request):
    """For code that does one thing where there is float64 and another where there is none."""
    with PretendDevice(float64=request.param) as device:
        yield device


def assert_same(found, expected, **tolerance):
    """The same on the device as on the CPU; what is a tensor there is one of the device."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(found, PretendTensor)
        torch.testing.assert_close(real(found), expected, equal_nan=True, check_dtype=False, **tolerance)
    elif isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other, **tolerance)
    else:
        assert isinstance(found, (int, float, bool))
        assert found == pytest.approx(expected, rel=tolerance.get("rtol", 1e-5), abs=tolerance.get("atol", 1e-6))


# The loss


def case(seed=0, queries=7, candidates=50, dim=6, ranks=3):
    generator = torch.Generator().manual_seed(seed)
    vectors = [F.normalize(torch.randn(n, dim, generator=generator), dim=1) for n in (queries, candidates)]
    matrix = torch.randint(-1, ranks + 1, (queries, candidates), generator=generator).to(torch.int8)
    matrix[0] = torch.where(matrix[0] == 2, 0, matrix[0])  # a query without rank 2
    matrix[1] = -1  # one without anything
    return *vectors, matrix


LOSSES = {
    "in": RankedInfoNCE.in_((0.1, 0.15, 0.2)),
    "out": RankedInfoNCE.out((0.1, 0.15, 0.2)),
    "out-in": RankedInfoNCE.out_in((0.1, 0.15, 0.2)),
    "sum": RankedInfoNCE.out((0.1, 0.15, 0.2), over_positives="sum", over_ranks="mean"),
    "pooled": RankedInfoNCE.out((0.1, 0.15, 0.2), over_positives="pooled"),
    "includes closer": RankedInfoNCE([RankTerm(0.1), RankTerm(0.2, "out", True), RankTerm(0.3, "in", True)]),
}
for first in LOSSES.values():  # whose first call looks at its inputs, as no other does
    first.from_embeddings(*case())


@pytest.mark.parametrize("divisor", [None, torch.tensor([20.0, 10.0, 30.0])], ids=["whole", "part"])
@pytest.mark.parametrize("form", ["dense", "blocks", "function of rows"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_gives_the_same_without_a_look(name, form, divisor, pretend):
    loss = LOSSES[name]

    def run(queries, candidates, ranks, divisor):
        queries, candidates = queries.clone().requires_grad_(), candidates.clone().requires_grad_()
        if form == "dense":
            output = loss(queries @ candidates.T, ranks, divisor)
        else:
            rows = ranks if form == "blocks" else (lambda start, stop: ranks[start:stop])
            output = loss.from_embeddings(queries, candidates, rows, divisor=divisor, block_size=3)
        return *output, loss.count(ranks), *torch.autograd.grad(2 * output.total, (queries, candidates))

    inputs = (*case(), divisor)
    assert_same(run(*moved(inputs)), run(*inputs), rtol=1e-5, atol=1e-6)
    assert pretend.reads == []
    assert pretend.uploads == []


@pytest.mark.parametrize("candidates", [0, 1])
def test_a_loss_of_nothing_is_zero(candidates, pretend):
    queries, others, ranks = moved(case(candidates=max(1, candidates)))
    others, ranks = others[:candidates], ranks[:, :candidates] * 0
    for output in (LOSSES["in"](queries @ others.T, ranks), LOSSES["in"].from_embeddings(queries, others, ranks)):
        assert real(output.total) == 0
    assert pretend.reads == []


def spoilt_rank(queries, candidates, ranks):
    ranks[2, 3] = 4


def spoilt_exclusion(queries, candidates, ranks):
    ranks[2, 3] = -2


def spoilt_query(queries, candidates, ranks):
    queries[4, 1] = torch.nan


def spoilt_excluded_candidate(queries, candidates, ranks):
    ranks[:, 5] = -1
    candidates[5] = torch.inf


@pytest.mark.parametrize("form", ["dense", "blocks"])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoilt_rank, "ranks holds rank 4 but there are only 3 terms"),
        (spoilt_exclusion, "ranks holds -2"),
        (spoilt_query, "queries holds 1 values"),
        (spoilt_excluded_candidate, "candidates holds 6 values"),
    ],
)
def test_what_is_wrong_makes_loss_and_gradient_nan_and_is_explained_on_request(spoil, message, form, pretend):
    inputs = case()
    spoil(*inputs)
    queries, candidates, ranks = moved(inputs)
    queries.requires_grad_()
    loss = LOSSES["out"]
    if form == "dense":
        output = loss(queries @ candidates.T, ranks)
        if spoil is spoilt_excluded_candidate:
            pytest.skip("the dense form has the gradient of the similarities alone")
    else:
        output = loss.from_embeddings(queries, candidates, ranks)
    output.total.backward()
    assert pretend.reads == []
    assert real(output.total).isnan()
    assert not real(queries.grad).isfinite().all()
    with pytest.raises(DataError, match=message):
        raise loss.explain(ranks, queries=queries.detach(), candidates=candidates)


def test_the_poison_of_wrong_ranks_reaches_every_query(pretend):
    """So that no later step can make the loss look right again."""
    queries, candidates, ranks = case()
    ranks[2, 3] = 9
    queries, candidates, ranks = moved((queries, candidates, ranks))
    for run in (
        lambda q: LOSSES["in"](q @ candidates.T, ranks),
        lambda q: LOSSES["in"].from_embeddings(q, candidates, ranks),
    ):
        given = queries.detach().clone().requires_grad_()
        run(given).total.backward()
        assert real(given.grad)[[0, 2, 3, 4, 5, 6]].isnan().all()  # the other one has no part in the loss


# The losses of the baselines

LABELS = {
    "classes": [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 5, 5],
    "some alone": [0, 1, 1, 2, 3, 4, 4, 5, 5, 0, 0, 0],
    "all alone": [0, 1, 2, 3, 4, 5],
    "one class": [2, 2, 2, 2],
}


def both_ways(loss, labels, pretend):
    """Values and gradients of a batch on the CPU and, without a look, on the device; what the loss remembers too."""
    labels, found = torch.tensor(labels), []
    vectors_ = F.normalize(vectors(len(labels), 5, seed=3), dim=1)
    for device in (False, True):
        made = loss()
        given = (moved(vectors_) if device else vectors_.clone()).requires_grad_()
        if device and isinstance(made, nn.Module):
            made.to(pretend.device)
        pretend.forget()
        values = [made(given, moved(labels) if device else labels) for _ in range(2)]
        values[-1].backward()
        if device:
            assert pretend.reads == pretend.uploads == []
        found.append([*(value.detach() for value in values), given.grad, *getattr(made, "state_dict", dict)().values()])
    return found


@pytest.mark.parametrize("name", LABELS)
def test_fast_ap_gives_the_same_without_a_look(name, pretend):
    expected, found = both_ways(lambda: partial(fast_ap, bins=5), LABELS[name], pretend)
    assert_same(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", LABELS)
def test_hierarchical_triplets_give_the_same_without_a_look(name, pretend):
    tree = TableRanks.from_tree(["a/0", "a/1", "a/2", "b/3", "b/4", "c/5"])
    expected, found = both_ways(lambda: HierarchicalTriplet(tree, slack=0.1), LABELS[name], pretend)
    assert_same(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("divisor", [None, torch.tensor([20.0, 10.0, 30.0])], ids=["whole", "part"])
def test_ranked_triplets_give_the_same_without_a_look(divisor, pretend):
    loss, (queries, candidates, ranks) = RankedTriplet((0.3, 0.6, 0.9)), case()
    queries, candidates = F.normalize(queries, dim=1), F.normalize(candidates, dim=1)
    expected = loss.from_embeddings(queries.requires_grad_(), candidates, ranks, divisor=divisor)
    expected.total.backward()
    given = moved(queries.detach()).requires_grad_()
    found = loss.from_embeddings(given, *moved((candidates, ranks)), divisor=moved(divisor))
    found.total.backward()
    assert pretend.reads == pretend.uploads == []
    assert_same(found, expected)
    assert_same(given.grad, queries.grad)


def within(name, views, to):
    """A batch as people make it; the source of ranks is new each time, since it goes where its labels are."""
    labels, table = torch.arange(6) % 3, TableRanks.from_superclasses([0, 0, 1])
    if name == "label sets":
        sets = [["red"], ["red", "car"], ["bus"], ["car"], ["red", "bus"], []]
        return in_batch(views, to(torch.arange(6)), LabelSetRanks(sets, [0.9, 0.3]))
    if name == "scores":
        return in_batch(views, ranks=score_ranks(to(SCORES), (0.7, 0.4)))
    if name == "absent views":
        return in_batch(views, to(labels), table, present=to(SCORES[:, :2] > 0.3))
    if name == "two towers":
        return two_towers(*views, to(labels), table)
    return in_batch(views, to(labels), table)


SCORES = torch.rand(6, 6, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("name", ["classes", "label sets", "scores", "absent views", "two towers"])
def test_a_batch_is_contrasted_without_a_look(name, normalize, pretend):
    loss = RankedInfoNCE([RankTerm(0.1, "out", denominator="all"), RankTerm(0.2, weight=0.5)])
    both, length = [], 2 if normalize else 1
    for to in (lambda values: values, moved):
        leaf = to(length * F.normalize(torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(1)), dim=2))
        leaf.requires_grad_()
        output = within(name, list(leaf), to).loss(loss, normalize=normalize)
        output.total.backward()
        both.append((output.total.detach(), output.per_rank, leaf.grad))
    assert pretend.reads == []
    assert_same(both[1], both[0], rtol=1e-5, atol=1e-6)


def test_what_is_given_on_the_cpu_goes_to_the_embeddings(pretend):
    views = [F.normalize(torch.randn(6, 4, generator=torch.Generator().manual_seed(i)), dim=1) for i in range(2)]
    own, ranks = torch.tensor([[1, 2], [3, 1]]), (SCORES > 0.5).int()
    expected = in_batch(views, ranks=ranks, own_ranks=own, present=SCORES[:, :2] > 0.3)
    found = in_batch(moved(views), ranks=ranks, own_ranks=own, present=SCORES[:, :2] > 0.3)
    assert_same(found.ranks, expected.ranks)
    assert pretend.reads == []


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoilt_rank, "ranks holds rank 4 but there are only 3 terms"),
        (spoilt_exclusion, "ranks holds -2"),
        (spoilt_query, "queries holds 1 values"),
    ],
)
def test_what_is_wrong_with_ranked_triplets_is_refused_or_makes_them_nan(spoil, message, pretend):
    loss, inputs = RankedTriplet((0.3, 0.6, 0.9)), case()
    spoil(*inputs)
    with pytest.raises(DataError, match=message.replace("queries holds 1", "similarities holds 50")):
        loss.from_embeddings(*inputs)
    queries, candidates, ranks = moved(inputs)
    total = loss.from_embeddings(queries.requires_grad_(), candidates, ranks).total
    total.backward()
    assert pretend.reads == []
    assert real(total).isnan()
    assert not real(queries.grad).isfinite().all()
    with pytest.raises(DataError, match=message):
        raise loss.explain(ranks, queries=queries.detach(), candidates=candidates)


# Ranks, bank, twin


def vectors(number=20, dim=4, seed=0):
    return torch.randn(number, dim, generator=torch.Generator().manual_seed(seed))


SOURCES = {
    "table": lambda: TableRanks.from_superclasses([0, 0, 1, 1, 2] * 4),
    "small table": lambda: TableRanks.from_superclasses([0, 0, 1]),
    "instances": InstanceRanks,
    "other instances": lambda: InstanceRanks(same=-1),
    "cosine": lambda: SampleRanks(vectors(), [0.6, 0.3]),
    "euclidean": lambda: SampleRanks(vectors(), [1.0, 2.0], metric="euclidean"),
    "neighbours": lambda: SampleRanks.from_neighbours(vectors(), [2, 5]),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_of_ranks_works_where_the_labels_are(name, either):
    source = SOURCES[name]()
    most = 3 if name == "small table" else 20
    queries, candidates = torch.arange(20) % most, (torch.arange(40) % (most + 2)) - 2
    expected = source(queries, candidates)
    on_device = SOURCES[name]()
    on_device(*moved((queries, candidates)))  # sends what it holds, once
    either.forget()
    found = on_device(*moved((queries, candidates)))
    assert found.dtype == torch.int8
    assert_same(found, expected, rtol=0, atol=0)
    if name == "euclidean" and not has_float64(
        found.device
    ):  # distances are compared on the CPU: labels there, ranks back
        assert len(either.reads) == 2
    else:
        assert either.reads == either.uploads == []
    assert torch.equal(on_device(queries, candidates), expected)  # and back


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("wrong", ["query", "candidate", "high query", "high candidate"])
def test_a_wrong_label_makes_the_loss_nan(name, wrong, pretend):
    if "high" in wrong and "instances" in name:
        pytest.skip("any sample id may be")
    queries, candidates = torch.zeros(4, dtype=torch.long), torch.zeros(6, dtype=torch.long)
    (queries if "query" in wrong else candidates)[1] = 20 if "high" in wrong else -3
    ranks = SOURCES[name]()(*moved((queries, candidates)))
    similarities = moved(torch.zeros(4, 6))
    loss = LOSSES["in"]
    assert real(loss(similarities, ranks).total).isnan()
    with pytest.raises(DataError, match="a label that the source of ranks does not know"):
        raise loss.explain(ranks, similarities=similarities)


def test_ranks_are_built_where_their_table_is(pretend):
    similarity = torch.tensor([[1.0, 0.6, 0.1], [0.6, 1.0, 0.2], [0.1, 0.2, 1.0]])
    assert_same(
        TableRanks.from_similarity(moved(similarity), [0.5]).table, TableRanks.from_similarity(similarity, [0.5]).table
    )
    superclasses = torch.tensor([0, 1, 0])
    assert_same(
        TableRanks.from_superclasses(moved(superclasses)).table, TableRanks.from_superclasses(superclasses).table
    )
    images = vectors(12, 4)
    ids = torch.arange(12)
    for options in ({"counts": [2]}, {"limits": [0.5]}):
        found = SampleRanks.from_encoder(lambda batch: batch * 2, moved(images), batch=5, **options)
        assert_same(
            found(*moved((ids, ids))), SampleRanks.from_encoder(lambda batch: batch * 2, images, **options)(ids, ids)
        )


def test_own_keys_have_ranks_on_the_device(pretend):
    assert_same(view_ranks(1, -1, 3, queries=2, device=pretend.device), view_ranks(1, -1, 3, queries=2))
    assert pretend.uploads == []


def test_a_bank_takes_keys_without_a_look(pretend):
    bank, on_device = MemoryBank(5, 2), MemoryBank(5, 2).to(pretend.device)
    pretend.forget()
    for number in range(4):
        keys, labels = vectors(3, 2, seed=number), torch.arange(3) + number
        bank.push(keys, labels)
        on_device.push(*moved((keys, labels)))
    assert pretend.reads == []
    assert pretend.uploads == []
    for name, value in bank.state_dict().items():
        assert_same(on_device.state_dict()[name], value, rtol=0, atol=0)
    queries = vectors(3, 2)
    assert_same(on_device.similarities(moved(queries)), bank.similarities(queries))
    assert len(on_device) == 5


@pytest.mark.parametrize(
    "source", [InstanceRanks(), TableRanks.from_superclasses([0, 0, 1]), SampleRanks(vectors(), [0.5])]
)
@pytest.mark.parametrize("wrong", ["label", "key"])
def test_what_is_wrong_in_a_push_shows_in_the_next_loss(wrong, source, pretend):
    bank, keys, labels = MemoryBank(5, 2).to(pretend.device), vectors(3, 2), torch.arange(3)
    if wrong == "label":
        labels[1] = -1  # an unfilled slot, if it were believed
    else:
        keys[1, 0] = torch.nan
    bank.push(*moved((keys, labels)))
    queries, ranks = moved(vectors(2, 2)), source(moved(torch.tensor([0, 1])), bank.labels)
    assert real(LOSSES["in"].from_embeddings(queries, bank.keys, ranks).total).isnan()


@pytest.mark.parametrize("buffers", ["own", "copy"])
def test_a_twin_follows_without_a_look(buffers, pretend):
    twins = []
    for device in (torch.device("cpu"), pretend.device):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(device)
        twin = MomentumTwin(module, 0.9, buffers=buffers)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(1.0)
            module(torch.ones(2, 3).to(device))
        pretend.forget()
        twin.update(module)
        twins.append(twin)
    assert pretend.reads == []
    assert pretend.uploads == []
    for one, other in zip(twins[0].state_dict().values(), twins[1].state_dict().values(), strict=True):
        assert_same(other, one)


STEP_READS = STEP_UPLOADS = 0  # of a step between two lines of the log; docs say so


@pytest.mark.parametrize(("source", "own"), [("table", "tensor"), ("instances", "numbers"), ("cosine", "numbers")])
def test_steps_of_momentum_contrast_learn_the_same_without_a_look(source, own, pretend):
    """Encoder, twin, bank, ranks, loss, optimizer: everything between two lines of the log but data and processes."""
    runs = []
    for device in (torch.device("cpu"), pretend.device):
        torch.manual_seed(0)
        encoder = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4), Unit()).to(device)
        twin, bank = MomentumTwin(encoder, 0.9), MemoryBank(32, 4).to(device)
        ranks, loss = SOURCES[source](), RankedInfoNCE.out_in((0.1, 0.2, 0.3))
        optimizer = torch.optim.SGD(encoder.parameters(), 0.1, momentum=0.9)
        own_ranks = (1, 2) if own == "numbers" else torch.tensor([[1] * 8, [2] * 7 + [-1]]).to(device)
        totals = []
        for number in range(4):
            batch = [vectors(8, 6, seed=10 * number + view).to(device) for view in range(3)]
            labels = ((torch.arange(8) * 3 + number) % 20).to(device)
            if number == 1:
                pretend.forget()  # the first step sends what the source of ranks holds
            reads, uploads = len(pretend.reads), len(pretend.uploads)
            step = contrast(encoder, twin, bank, ranks, batch[0], batch[1:], labels, own_ranks=own_ranks)
            output = loss.from_embeddings(step.queries, step.candidates, step.ranks, divisor=loss.count(step.ranks))
            output.total.backward()
            optimizer.step()
            optimizer.zero_grad()
            bank.push(step.keys[0], labels)
            twin.update(encoder)
            if number and device == pretend.device:
                assert len(pretend.reads) - reads == STEP_READS, pretend.reads
                assert len(pretend.uploads) - uploads == STEP_UPLOADS, pretend.uploads
            totals.append(output.total.detach())
        runs.append((torch.stack(totals), list(encoder.state_dict().values()), list(bank.state_dict().values())))
    assert_same(runs[1], runs[0], rtol=1e-4, atol=1e-5)


class Unit(nn.Module):
    def forward(self, x):
        return F.normalize(x, dim=1)


# Draws and views


def test_draws_are_the_same_numbers(pretend):
    ids = torch.tensor([0, 7, 2**40])
    found = uniform(3, -1, 2, moved(ids), 5)
    assert_same(found, uniform(3, -1, 2, ids, 5), rtol=0, atol=0)
    assert pretend.reads == []


VIEWS = {
    "colour": partial(PixelViews, size=12, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.25)),
    "gray": partial(PixelViews, size=12, mean=(0.5,), std=(0.2,), grayscale=0.0),
    "no jitter": partial(PixelViews, size=12, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.25), jitter=None),
}


@pytest.mark.parametrize("time", [0, 3])
@pytest.mark.parametrize("name", VIEWS)
def test_views_are_those_of_the_cpu(name, time, either):
    views = VIEWS[name]()
    shape = (40, len(views.mean), *([time] if time else []), 20, 17)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    ids, draw = torch.arange(40), {"seed": 1, "epoch": 2, "view": 0}
    here = views.draw_parameters(20, 17, **draw, sample_ids=ids)
    there = views.draw_parameters(20, 17, **draw, sample_ids=moved(ids))
    assert_same(tuple(there), tuple(here), rtol=0, atol=0)  # the same boxes to the pixel
    views(moved(images), **draw, sample_ids=moved(ids))  # sends mean and standard deviation, once
    either.forget()
    found = views(moved(images), **draw, sample_ids=moved(ids))
    # Without float64 the draws come to the CPU, where boxes are made, and go back.
    assert len(either.reads) == len(either.uploads) == (0 if either.float64 else 1)
    assert_same(found, views(images, **draw, sample_ids=ids), rtol=1e-5, atol=2e-5)
    either.forget()
    drawn_here = views(moved(images), **draw, sample_ids=ids)  # what a device without float64 should be given
    assert either.reads == []
    assert torch.equal(drawn_here, found)
    assert_same(views.resize_and_normalise(moved(images)), views.resize_and_normalise(images))


@pytest.mark.parametrize(("have", "want"), [(1, 3), (3, 1), (3, 3)])
def test_images_get_the_channels_of_the_encoder_where_they_are(have, want, pretend):
    images = torch.randint(0, 256, (3, have, 6, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert_same(with_channels(moved(images), want), with_channels(images, want), rtol=0, atol=0)
    assert pretend.reads == []


def test_a_mean_without_float64_is_the_same_in_any_order():
    values = torch.rand(6, 3, 1, 1000, generator=torch.Generator().manual_seed(0))
    values[0], values[1], values[2] = 0.0, 1.0, 2.0**-20
    expected = view_tensors._exact_mean(values)
    with PretendDevice(float64=False):
        found = real(view_tensors._exact_mean(moved(values)))
        assert torch.equal(real(view_tensors._exact_mean(moved(values.flip(-1)))), found)
    torch.testing.assert_close(found, expected, rtol=2**-23, atol=0)


# Evaluation


def samples():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 6
    features = torch.randn(6, 5, generator=generator)[labels] + torch.randn(60, 5, generator=generator)
    return features[:24], features[24:], labels[:24], labels[24:]


def retrieve(function, queries, gallery, query_labels, gallery_labels, **options):
    return function(queries, gallery, query_labels=query_labels, gallery_labels=gallery_labels, **options)


def gaussians(queries, gallery, query_labels, gallery_labels, **options):
    fitted = outliers.ClassGaussians(gallery, gallery_labels, **options)
    return fitted.score(queries), fitted.log_likelihoods(queries)


def gaussians_of_few(queries, gallery, query_labels, gallery_labels):
    wide = F.pad(gallery, (0, 4)).roll(1, dims=0) + F.pad(gallery, (4, 0))
    return gaussians(wide[:5], wide, None, gallery_labels, regularisation=0.01)


def probed(queries, gallery, query_labels, gallery_labels, protocol):
    result = probe.linear_probe(
        gallery, queries, train_labels=gallery_labels, test_labels=query_labels, protocol=protocol
    )
    return result.accuracy, result.best_test_accuracy


def of_scores(function, queries, gallery, *_):
    return function(gallery[:, 0], queries[:, 0] - 0.5)


RANKS = TableRanks.from_superclasses([0, 0, 1, 1, 2, 2])
METRICS = {
    "recall@1": partial(retrieve, retrieval.recall_at_k),
    "recall@5": partial(retrieve, retrieval.recall_at_k, k=5),
    "map": partial(retrieve, retrieval.mean_average_precision),
    "curve": partial(retrieve, retrieval.precision_recall_curve),
    "ndcg": partial(retrieve, retrieval.ndcg, rank_source=RANKS, k=10),
    "ndcg of samples": partial(retrieve, retrieval.ndcg, rank_source=InstanceRanks()),
    "order": partial(retrieve, retrieval.rank_order_accuracy, rank_source=RANKS),
    "all": partial(retrieve, retrieval.ranked_retrieval, rank_source=RANKS),
    "gaussians": gaussians,
    "gaussians of few": gaussians_of_few,
    "tied": partial(gaussians, covariance="tied"),
    "neighbours": lambda q, g, *_: outliers.neighbour_score(q, g, k=3),
    "auroc": partial(of_scores, outliers.auroc),
    "shares": partial(of_scores, lambda *scores: float(outliers.shares_below(*scores).sum())),
    "fpr": partial(of_scores, outliers.fpr_at_recall),
    "fast probe": partial(probed, protocol="fast"),
    "paper's probe": partial(probed, protocol="paper"),
    "alignment": lambda q, g, ql, gl: geometry.alignment(g, gl),
    "uniformity": lambda q, g, *_: geometry.uniformity(g),
    "class similarity": lambda q, g, ql, gl: geometry.class_similarity(g, gl),
    "unit vectors": lambda q, *_: unit_vectors(q, "queries"),
    "labels": lambda q, g, ql, gl: check_labels(ql, q, "labels"),
}


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_works_where_the_vectors_are(name, either):
    given = samples()
    assert_same(METRICS[name](*moved(given)), METRICS[name](*given), rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize(
    "name", [name for name in METRICS if name not in ("auroc", "shares", "fpr", "labels", "unit vectors")]
)
def test_labels_and_galleries_may_come_from_the_cpu(name, pretend):
    queries, gallery, *labels = samples()
    if name in ("alignment", "class similarity", "uniformity") or "gaussians" in name or name == "tied":
        given = (queries, moved(gallery), *labels)
    else:
        given = (moved(queries), gallery, *labels)
    expected = METRICS[name](queries, gallery, *labels)
    assert_same(METRICS[name](*given), expected, rtol=2e-5, atol=2e-4)


def test_the_papers_probe_takes_features_of_every_epoch(pretend, monkeypatch):
    monkeypatch.setattr(probe, "EPOCHS", 3)
    queries, gallery, query_labels, gallery_labels = samples()
    results = [
        probe.linear_probe(
            lambda epoch, place=place: place(gallery) * (1 + epoch),
            place(queries),
            train_labels=place(gallery_labels),
            test_labels=place(query_labels),
            protocol="paper",
        )
        for place in (moved, lambda x: x)
    ]
    assert results[0][:3] == results[1][:3]
    assert real(results[0].right).tolist() == results[1].right.tolist()


def test_a_map_comes_back_to_the_device(pretend):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's own
        found = geometry.tsne(moved(samples()[0]))
    assert isinstance(found, PretendTensor)
    assert found.shape == (24, 2)


def test_float64_is_found_where_it_is(either):
    assert has_float64(torch.device("cpu"))
    assert has_float64(either.device) == either.float64
    wide = in_float64(moved(torch.ones(2)))
    assert wide.dtype == torch.float64
    assert (wide.device == either.device) == either.float64
    assert math.isclose(float(wide.sum()), 2.0)
