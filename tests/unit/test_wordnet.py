"""The WordNet table that ships, and ways through it, against every chain of hypernyms written out."""

import itertools
from collections import Counter
from importlib.resources import files

import pytest
import torch

from rince import DataError
from rince.config import validate
from rince.hierarchy import text
from rince.hierarchy.given import Ranked
from rince.hierarchy.wordnet import load_wordnet, readable_names

TABBY, TIGER_CAT, COUGAR, TENCH = "n02123045", "n02123159", "n02125311", "n01440764"


def class_list(name):
    lines = (files("rince") / "hierarchy" / "lists" / f"{name}.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def chains(parents, node):
    """Every way from a node up to a root."""
    return [[node, *rest] for parent in parents[node] for rest in chains(parents, parent)] or [[node]]


def shortest(parents, one, other):
    return min(
        (
            up.index(node) + down.index(node)
            for up, down in itertools.product(chains(parents, one), chains(parents, other))
            for node in up
            if node in down
        ),
        default=float("inf"),
    )


def recipe(**ranks):
    values = {"name": "t", "data": {"source": "fashion"}, "loss": {"terms": [{"temperature": 0.1}]}, "ranks": ranks}
    return validate(values, "test")


def test_ways_are_the_shortest_over_all_chains():
    wordnet = load_wordnet()
    ids = class_list("imagenet100")[:40]
    assert any(
        len(wordnet.parents[node]) > 1 for wnid in ids for chain in chains(wordnet.parents, wnid) for node in chain
    )
    found = wordnet.path_lengths(ids)
    expected = [[shortest(wordnet.parents, one, other) for other in ids] for one in ids]
    assert found.tolist() == expected


def test_known_facts_of_wordnet():
    wordnet = load_wordnet()
    # tabby → domestic cat ← tiger cat; tabby → domestic cat → cat → feline ← big cat? cougar is a wildcat, not a big one.
    assert wordnet.path_lengths([TABBY, TIGER_CAT])[0, 1] == 2
    assert [wordnet.names[node] for node in chains(wordnet.parents, COUGAR)[0][:4]] == [
        "cougar",
        "wildcat",
        "cat",
        "feline",
    ]
    assert wordnet.path_lengths([TABBY, COUGAR])[0, 1] == 4
    assert all(chain[-1] == "n00001740" for chain in chains(wordnet.parents, TENCH))
    assert wordnet.names["n00001740"] == "entity"


def test_the_lists_that_ship_are_what_they_say():
    thousand, hundred = class_list("imagenet1k"), class_list("imagenet100")
    assert len(set(thousand)) == len(thousand) == 1000
    assert thousand == sorted(thousand)  # the usual order of labels
    assert len(set(hundred)) == 100
    assert hundred[:2] == ["n02869837", "n01749939"]
    assert set(hundred) <= set(thousand) <= load_wordnet().names.keys()
    sets = [class_list(f"imagenet-outliers-{number}") for number in (1, 2, 3)]
    assert [len(each) for each in sets] == [100] * 3
    assert len({*hundred, *sets[0], *sets[1], *sets[2]}) == 400  # no class in two
    assert {*sets[0], *sets[1], *sets[2]} <= set(thousand)
    inliers, outliers = class_list("tiny-imagenet-180"), class_list("tiny-imagenet-20")
    assert (len(set(inliers)), len(set(outliers)), len({*inliers, *outliers})) == (180, 20, 200)
    assert {*inliers, *outliers} <= load_wordnet().names.keys()


def test_thresholds_are_the_longest_ways():
    ids = [TABBY, TIGER_CAT, COUGAR, TENCH]
    found = recipe(kind="wordnet", thresholds=[2, 4]).ranks.build(Ranked(ids, [], 0))
    assert found.table.tolist() == [[1, 2, 3, 0], [2, 1, 3, 0], [3, 3, 1, 0], [0, 0, 0, 1]]


def test_a_table_of_ones_own(tmp_path):
    # A diamond: the bat is a mammal and a flier. The rock stands alone.
    file = tmp_path / "kinds.csv"
    file.write_text("child,parent\nbat,mammal\nbat,flier\ngull,bird\nbird,flier\ncow,hoofed\nhoofed,mammal\nrock,\n")
    ids = ["bat", "gull", "cow", "rock", "mammal"]
    inf = float("inf")
    assert load_wordnet(str(file)).path_lengths(ids).tolist() == [
        [0, 3, 3, inf, 1],
        [3, 0, inf, inf, inf],
        [3, inf, 0, inf, 2],
        [inf, inf, inf, 0, inf],
        [1, inf, 2, inf, 0],
    ]
    found = recipe(kind="wordnet", thresholds=[1, 3], file=str(file)).ranks.build(Ranked(ids, [], 0))
    assert found.table[0].tolist() == [1, 3, 3, 0, 2]


@pytest.mark.parametrize(
    ("content", "message"),
    [("a,b\n1,2\n", "needs the columns child and parent; it has a, b"), ("child,parent\n,x\n", "no child in line 2"), ("", "it has nothing"), (None, "there is no file")],
)  # fmt: skip
def test_bad_tables_are_refused(tmp_path, content, message):
    file = tmp_path / "kinds.csv"
    if content is not None:
        file.write_text(content)
    with pytest.raises(DataError, match=message):
        load_wordnet(str(file))


def test_classes_that_are_no_ids_are_refused():
    with pytest.raises(DataError, match="does not know 2 of 3 classes, 'cat' first; name classes by WordNet id"):
        recipe(kind="wordnet").ranks.build(Ranked([TABBY, "cat", "dog"], [], 0))


def test_ids_become_names_and_no_two_are_alike():
    assert readable_names([TENCH, "my cat"]) == ("tench", "my cat")
    assert readable_names(["n02012849", "n03126707"]) == ("crane (wading bird)", "crane (lifting device)")
    assert readable_names(["n02012849", TENCH]) == ("crane", "tench")
    names = readable_names(class_list("imagenet1k"))
    assert max(Counter(names).values()) == 1
    assert names[999] == "toilet tissue"


def test_text_similarity_is_that_of_the_names(monkeypatch):
    seen = []
    monkeypatch.setattr(text, "embed_names", lambda names, model: seen.append(names) or torch.eye(len(names)))
    text.name_similarity([TENCH, "a dog"])
    assert seen == [("tench", "a dog")]
    with pytest.raises(DataError, match="'n99999999' looks like a WordNet id"):
        text.name_similarity([TENCH, "n99999999"])
