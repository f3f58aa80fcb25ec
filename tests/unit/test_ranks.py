import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rince import ConfigError, DataError, InstanceRanks, ShapeError, TableRanks, score_ranks, view_ranks
from rince.hierarchy.taxonomy import load_taxonomy

labels = st.lists(st.integers(0, 5), min_size=1, max_size=9).map(torch.tensor)
bank_labels = st.lists(st.integers(-2, 5), min_size=1, max_size=9).map(torch.tensor)
SUPERCLASS = [0, 1, 0, 1, 2, 2]


def naive(query, candidate, rank):
    if candidate == -1:
        return -1
    return 0 if candidate == -2 else rank(query, candidate)


@given(queries=labels, candidates=bank_labels)
@settings(deadline=None)
def test_superclasses(queries, candidates):
    def rank(q, c):
        return 1 if q == c else 2 if SUPERCLASS[q] == SUPERCLASS[c] else 0

    ranks = TableRanks.from_superclasses(SUPERCLASS)(queries, candidates)
    assert ranks.dtype == torch.int8
    assert ranks.tolist() == [[naive(q, c, rank) for c in candidates.tolist()] for q in queries.tolist()]


@given(queries=labels, candidates=bank_labels)
@settings(deadline=None)
def test_instances(queries, candidates):
    ranks = InstanceRanks()(queries, candidates)
    assert ranks.tolist() == [
        [naive(q, c, lambda q, c: int(q == c)) for c in candidates.tolist()] for q in queries.tolist()
    ]


@pytest.mark.parametrize("number", [1, 3, 300])
def test_few_and_many_queries_take_different_ways_to_one_result(number):
    torch.manual_seed(0)
    source = TableRanks(torch.randint(-1, 4, (20, 20)))
    queries, candidates = torch.randint(0, 20, (number,)), torch.randint(0, 20, (50,))
    assert torch.equal(source(queries, candidates), source.table[queries][:, candidates])


def test_a_tree_of_uneven_depth():
    paths = ["animal/dog/poodle", "animal/dog/pug", "animal/cat", "animal/dog", "plant/oak", ("plant", "oak", "x/y")]
    source = TableRanks.from_tree(paths)
    assert source.ranks == 3
    assert source.table.tolist() == [
        [1, 2, 3, 2, 0, 0],
        [2, 1, 3, 2, 0, 0],
        [3, 3, 1, 3, 0, 0],
        [2, 2, 3, 1, 0, 0],
        [0, 0, 0, 0, 1, 2],
        [0, 0, 0, 0, 2, 1],
    ]


def test_a_tree_of_two_levels_is_superclasses():
    paths = [f"{superclass}/{c}" for c, superclass in enumerate(SUPERCLASS)]
    assert torch.equal(TableRanks.from_tree(paths).table, TableRanks.from_superclasses(SUPERCLASS).table)


def test_similarity_with_thresholds_and_empty_ranks():
    similarity = torch.tensor(
        [[1.0, 0.6, 0.4, 0.1], [0.6, 1.0, 0.45, 0.0], [0.4, 0.45, 1.0, 0.2], [0.1, 0.0, 0.2, 1.0]]
    )
    table = TableRanks.from_similarity(similarity, [0.5, 0.45]).table
    assert table.tolist() == [[1, 2, 0, 0], [2, 1, 3, 0], [0, 3, 1, 0], [0, 0, 0, 1]]
    assert TableRanks.from_similarity(similarity, [0.9]).ranks == 1  # nobody passes: an empty rank, not an error


def test_view_ranks():
    assert view_ranks(1, -1, 0, queries=2).tolist() == [[1, -1, 0], [1, -1, 0]]
    assert view_ranks(queries=2).shape == (2, 0)


def test_repr_says_what_it_is():
    assert repr(TableRanks.from_superclasses(SUPERCLASS)) == "TableRanks(classes=6, ranks=2)"


def test_names_of_superclasses_and_mappings_are_taken():
    expected = TableRanks.from_superclasses([0, 0, 1, 0]).table
    names = ["fruit", "fruit", "tool", "fruit"]
    for given_as in (names, tuple(names), np.array(names), dict(zip("abcd", names, strict=True))):
        assert TableRanks.from_superclasses(given_as).table.equal(expected)
    with pytest.raises(DataError, match="numbers or names, not both"):
        TableRanks.from_superclasses(["fruit", 1])


def test_a_tree_as_a_mapping_is_that_of_its_paths():
    expected = TableRanks.from_tree(["animal/dog/poodle", "animal/dog/pug", "animal/cat/manx"]).table
    above = {"poodle": "animal/dog", "pug": ("animal", "dog"), "manx": "animal/cat/manx"}
    assert TableRanks.from_tree(above).table.equal(expected)
    with pytest.raises(DataError, match="put it in a list"):
        TableRanks.from_tree("animal/dog")


def test_scores_become_ranks_by_thresholds():
    scores = [[1.0, 0.9, 0.899, 0.5, 0.0, -2.0, float("nan")], [float("inf"), 0.7, 0.6, 0.5, 0.4, float("-inf"), 0.9]]
    assert score_ranks(scores, (0.9, 0.5, 0.0)).tolist() == [[1, 1, 2, 2, 3, 0, -1], [1, 2, 2, 2, 3, 0, 1]]
    assert score_ranks(torch.tensor([3, 2, 1, 0]), (3, 1)).tolist() == [1, 2, 2, 0]
    with pytest.raises(ConfigError, match=r"thresholds must fall from rank to rank, .* got \(0.1, 0.5\)"):
        score_ranks(scores, (0.1, 0.5))
    with pytest.raises(ShapeError, match="scores must be real numbers"):
        score_ranks(torch.ones(2).bool(), (0.5,))


def test_a_tree_of_mappings_is_read_as_a_taxonomy_file_is(tmp_path):
    tree = {"animal": {"dog": ["poodle", "pug"], "cat": ["manx"]}, "plant": ["oak", {"herb": ["mint"]}]}
    (tmp_path / "tree.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    names = ["poodle", "pug", "manx", "oak", "mint"]
    expected = TableRanks.from_tree(load_taxonomy(tmp_path / "tree.yaml").paths_for(names))
    assert TableRanks.from_tree(tree).table.equal(expected.table)
    with pytest.raises(DataError, match=r"'dog' holds the list .*, which could be its classes or what stands above it"):
        TableRanks.from_tree({"dog": ["poodle", "pug"], "cat": ["manx"]})
    with pytest.raises(DataError, match="'animal/dog' must hold a mapping or a list of class names, got 3"):
        TableRanks.from_tree({"animal": {"dog": 3}})
    assert TableRanks.from_tree({"poodle": ("animal", "dog"), "manx": "animal/cat"}).table.tolist() == [[1, 3], [3, 1]]
