"""Batches that contain the ranks, held against plain loops over the pairs of every batch."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from rince import ConfigError, DataError, RankedBatchSampler, SampleRanks, TableRanks


def ranks_of_others(labels, table, query, candidates):
    """What other samples are to a query, by a look at every one of them."""
    return {int(table[labels[query]][labels[other]]) for other in candidates if other != query} - {0, -1}


def epoch_of(sampler, epoch=0):
    return [sampler.ids(epoch, step).tolist() for step in range(len(sampler))]


@st.composite
def trees(draw):
    """Classes of a tree of three levels with any number of samples, among them classes and groups of one."""
    paths = sorted(draw(st.sets(st.tuples(*[st.sampled_from("abc")] * 3), min_size=2, max_size=12)))
    sizes = draw(st.lists(st.integers(1, 9), min_size=len(paths), max_size=len(paths)))
    labels = [label for label, size in enumerate(sizes) for _ in range(size)]
    return draw(st.permutations(labels)), TableRanks.from_tree(paths)


@given(trees(), st.integers(2, 3), st.integers(0, 3), st.sampled_from(["none", "classes"]))
@settings(deadline=None, max_examples=60)
def test_every_query_has_every_rank_that_the_data_have(tree, per_class, seed, balance):
    labels, ranks = tree
    batch = 4 * per_class  # room for a family: in a tree of three levels up to four classes
    if batch > len(labels):
        return
    sampler = RankedBatchSampler(labels, ranks, batch, per_class, seed=seed, balance=balance)
    table, everybody = ranks.table.tolist(), range(len(labels))
    for ids in epoch_of(sampler) + epoch_of(sampler, 1):
        assert len(set(ids)) == len(ids) <= batch
        for query in ids:
            assert ranks_of_others(labels, table, query, ids) == ranks_of_others(labels, table, query, everybody)


LABELS = torch.arange(1200) % 150
SIBLINGS = TableRanks.from_superclasses(torch.arange(150) // 3)


def test_a_random_batch_does_not():
    """What it is for: of 64 random samples of 150 classes most have no other one of their class."""
    random = torch.randperm(1200, generator=torch.Generator().manual_seed(0))[:64].tolist()
    alone = [q for q in random if 1 not in ranks_of_others(LABELS, SIBLINGS.table, q, random)]
    assert len(alone) > 32
    sampler = RankedBatchSampler(LABELS, SIBLINGS, 64)
    assert all(1 in ranks_of_others(LABELS, SIBLINGS.table, q, ids) for ids in epoch_of(sampler)[:2] for q in ids)


def test_an_epoch_has_every_sample_about_once():
    sampler = RankedBatchSampler(LABELS, SIBLINGS, 60)
    ids = [i for batch in epoch_of(sampler) for i in batch]
    assert len(ids) == len(sampler) * 60 == 1200
    assert len(set(ids)) > 1080  # 0.63 of them, if they were drawn with replacement
    assert max(Counter(ids).values()) <= 2


@pytest.mark.parametrize(("balance", "shares"), [("none", (0.72, 0.9)), ("classes", (0.2, 0.3))])
def test_large_classes_come_by_their_size_or_as_often_as_others(balance, shares):
    labels = [0] * 400 + [1] * 40 + [2] * 40 + [3] * 20
    sampler = RankedBatchSampler(labels, TableRanks.from_superclasses([0, 1, 2, 3]), 10, balance=balance)
    drawn = Counter(labels[i] for batch in epoch_of(sampler) for i in batch)
    assert shares[0] < drawn[0] / drawn.total() < shares[1]


def test_any_step_is_found_without_the_ones_before():
    sampler, other = (RankedBatchSampler(LABELS, SIBLINGS, 64, seed=5) for _ in range(2))
    first, second = list(sampler), list(sampler)  # an epoch follows the other
    assert first != second
    assert [sorted(batch) for batch in first] != [sorted(batch) for batch in second]
    other.seek(1, 7)
    assert list(other) == second[7:]
    other.set_epoch(0)
    assert list(other) == first
    assert list(RankedBatchSampler(LABELS, SIBLINGS, 64, seed=6)) != first


def test_parts_of_processes_make_the_batch_of_one():
    parts = [list(RankedBatchSampler(LABELS, SIBLINGS, 64, process=i, processes=3)) for i in range(3)]
    whole = list(RankedBatchSampler(LABELS, SIBLINGS, 64))
    assert [[*a, *b, *c] for a, b, c in zip(*parts, strict=True)] == whole
    assert [len(share) for share in next(zip(*parts, strict=True))] == [22, 21, 21]


def test_it_is_a_batch_sampler_of_torch():
    sampler = RankedBatchSampler(LABELS, SIBLINGS, 64)
    loaded = [labels for (labels,) in DataLoader(TensorDataset(LABELS), batch_sampler=sampler)]
    assert len(loaded) == len(sampler) == 18
    assert all(min(Counter(labels.tolist()).values()) >= 2 for labels in loaded)


def test_ranks_between_samples():
    """Pairs of neighbours on a line: who is near whom is known without classes."""
    places = torch.arange(50)[:, None] * 10.0 + torch.tensor([0.0, 1.0])
    ranks = SampleRanks(places.reshape(-1, 1), [2.0], metric="euclidean")
    sampler = RankedBatchSampler(torch.arange(100), ranks, 10)
    batches = epoch_of(sampler)
    assert len(batches) == 10
    for ids in batches:
        assert sorted(i ^ 1 for i in ids) == sorted(ids)  # each with its neighbour


def test_ranks_that_call_for_ever_more_classes_fill_the_batch():
    """A chain: every class is near the next, so a family has no end."""
    similarity = torch.eye(60) + torch.diag(torch.full((59,), 0.5), 1) + torch.diag(torch.full((59,), 0.5), -1)
    sampler = RankedBatchSampler(torch.arange(600) % 60, TableRanks.from_similarity(similarity, [0.4]), 16)
    for ids in epoch_of(sampler):
        assert len(ids) == 16
        assert min(Counter(i % 60 for i in ids).values()) >= 2


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch": 2000}, DataError, "1200 samples make no batch of 2000; use a smaller batch"),
        ({"batch": 3}, ConfigError, "room for 2 samples of a class and of one of each further rank, 4; got 3"),
        ({"batch": 8, "per_class": 1}, ConfigError, "per_class must be a whole number, at least 2; got 1"),
        ({"batch": 8, "processes": 9}, ConfigError, "batch is that of all processes, at least a sample for each of 9"),
        ({"batch": 8, "seed": "a"}, ConfigError, "seed must be a whole number"),
        ({"batch": 8, "balance": "ranks"}, ConfigError, "balance must be one of 'none', 'classes'; got 'ranks'"),
        ({"batch": 8, "process": 2, "processes": 2}, ConfigError, "process counts from 0 to processes - 1, got 2 of 2"),
    ],
)
def test_what_makes_no_batches_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        RankedBatchSampler(LABELS, SIBLINGS, **options)
    with pytest.raises(ConfigError, match="rank_source is called with labels of queries and candidates"):
        RankedBatchSampler(LABELS, SIBLINGS.table, 8)


def test_any_function_of_labels_ranks():
    table = SIBLINGS.table
    found = RankedBatchSampler(LABELS, lambda queries, candidates: table[queries][:, candidates], 64)
    assert list(found) == list(RankedBatchSampler(LABELS, SIBLINGS, 64))


def test_a_step_that_an_epoch_does_not_have_is_refused():
    with pytest.raises(ConfigError, match="an epoch has 18 steps, so step 19 is none of them"):
        RankedBatchSampler(LABELS, SIBLINGS, 64).seek(0, 19)
    with pytest.raises(ConfigError, match="an epoch has 18 steps, so step 18 is none of them"):
        RankedBatchSampler(LABELS, SIBLINGS, 64).ids(0, 18)
    with pytest.raises(ConfigError, match="step must be a whole number, at least 0; got -1"):
        RankedBatchSampler(LABELS, SIBLINGS, 64).ids(0, -1)
