"""What callers may give: arrays and lists as well as tensors, vectors of any length, whole numbers."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from rince import (
    ConfigError,
    DataError,
    InstanceRanks,
    MemoryBank,
    MomentumTwin,
    RankedInfoNCE,
    RankTerm,
    SampleRanks,
    ShapeError,
    TableRanks,
    linear_temperatures,
    ranked_info_nce,
    ranked_info_nce_from_embeddings,
    view_ranks,
)
from rince.evaluation import (
    ClassGaussians,
    alignment,
    auroc,
    class_similarity,
    fpr_at_recall,
    linear_probe,
    mean_average_precision,
    ndcg,
    neighbour_score,
    precision_recall_curve,
    rank_order_accuracy,
    recall_at_k,
    tsne,
    uniformity,
)
from rince.evaluation.paired import paired_difference
from rince.inputs import as_tensor, unit_rows
from rince.losses.fast_ap import fast_ap
from rince.losses.hierarchical_triplet import HierarchicalTriplet
from rince.losses.triplet import RankedTriplet
from rince.moco import contrast

NAN, HUGE = float("nan"), 10**400
FEW = torch.Generator().manual_seed(3)
X = torch.randn(40, 6, generator=FEW)
U = torch.nn.functional.normalize(X, dim=1)
Y = torch.arange(40) % 3
RANKS = torch.randint(-1, 3, (4, 40), generator=FEW)
TERMS = [RankTerm(0.1), RankTerm(0.2, "out")]
TREE = TableRanks.from_superclasses([0, 0, 1])


def pushed(keys, labels):
    bank = MemoryBank(50, 6)
    bank.push(keys, labels)
    return torch.cat([bank.keys, bank.labels[:, None]], dim=1)


# Each takes a function that makes of a tensor what a caller may give in its place.
CALLS = {
    "loss": lambda of: ranked_info_nce(of(X[:4] @ X.T), of(RANKS), TERMS),
    "blockwise": lambda of: ranked_info_nce_from_embeddings(of(U[:4]), of(U[4:]), of(RANKS[:, 4:]), TERMS),
    "divisor": lambda of: RankedInfoNCE(TERMS)(of(X[:4] @ X.T), of(RANKS), of(torch.tensor([4, 7]))).total,
    "count": lambda of: RankedInfoNCE(TERMS).count(of(RANKS)),
    "table": lambda of: TableRanks(of(TREE.table))(of(Y[:3]), of(Y)),
    "superclasses": lambda of: TableRanks.from_superclasses(of(torch.tensor([0, 0, 1]))).table,
    "similarity": lambda of: TableRanks.from_similarity(of(X[:5] @ X[:5].T), of(torch.tensor([1.0, 0.5]))).table,
    "instances": lambda of: InstanceRanks()(of(Y[:3]), of(Y)),
    "samples": lambda of: SampleRanks(of(X), of(torch.tensor([0.5, 0.2])))(of(Y[:3]), of(Y)),
    "neighbours": lambda of: SampleRanks.from_neighbours(of(X), [2, 5], metric="euclidean")(of(Y[:3]), of(Y)),
    "encoder": lambda of: SampleRanks.from_encoder(lambda x: x, of(X), counts=[2])(of(Y[:3]), of(Y)),
    "push": lambda of: pushed(of(X), of(Y)),
    "bank": lambda of: MemoryBank(8, 6, start="random").similarities(of(X)),
    "recall": lambda of: recall_at_k(of(X[:9]), of(X[9:]), query_labels=of(Y[:9]), gallery_labels=of(Y[9:]), k=2),
    "map": lambda of: mean_average_precision(
        of(X), of(X), query_labels=of(Y), gallery_labels=of(Y), same=of(torch.arange(40))
    ),
    "curve": lambda of: precision_recall_curve(of(X), of(X), query_labels=of(Y), gallery_labels=of(Y)).precision,
    "ndcg": lambda of: ndcg(of(X), of(X), query_labels=of(Y), gallery_labels=of(Y), rank_source=TREE),
    "order": lambda of: rank_order_accuracy(of(X), of(X), query_labels=of(Y), gallery_labels=of(Y), rank_source=TREE),
    "auroc": lambda of: auroc(of(X[0]), of(X[1])),
    "fpr": lambda of: fpr_at_recall(of(X[:, 0]), of(X[:, 1])),
    "gaussians": lambda of: ClassGaussians(of(X), of(Y)).score(of(X)),
    "likelihoods": lambda of: ClassGaussians(of(X), of(Y), covariance="tied").log_likelihoods(of(X)),
    "neighbour score": lambda of: neighbour_score(of(X[:9]), of(X), k=3, same=of(torch.arange(9))),
    "alignment": lambda of: alignment(of(X), of(Y)),
    "uniformity": lambda of: uniformity(of(X)),
    "class similarity": lambda of: class_similarity(of(X), of(Y)),
    "triplet": lambda of: RankedTriplet((0.5, 1.0))(of(U[:4] @ U.T), of(RANKS), of(torch.tensor([4, 7]))).total,
    "triplet of embeddings": lambda of: RankedTriplet((0.5, 1.0)).from_embeddings(of(U[:4]), of(U), of(RANKS)).total,
    "fast ap": lambda of: fast_ap(of(U), of(Y)),
    "hierarchical triplet": lambda of: HierarchicalTriplet(TREE)(of(U), of(Y)),
    "difference": lambda of: torch.tensor(paired_difference([of(X[0]), of(X[1])], [of(X[2])], resamples=50)),
    "map of samples": lambda of: tsne(of(X)),
    "probe": lambda of: linear_probe(of(X), of(X), train_labels=of(Y), test_labels=of(Y)).right,
    "paper's probe": lambda of: (
        linear_probe(lambda _: of(X), of(X), train_labels=of(Y), test_labels=of(Y), protocol="paper").right
    ),
}


def backwards(tensor):
    """An array that runs backwards through its memory, and one that must not be written to: torch takes neither."""
    array = np.ascontiguousarray(tensor.numpy()[::-1])[::-1]
    array.flags.writeable = False
    return array


GIVEN = {
    "array": lambda tensor: tensor.numpy(),
    "backwards": backwards,
    "other byte order": lambda tensor: tensor.numpy().astype(tensor.numpy().dtype.newbyteorder(">")),
    "list": lambda tensor: tensor.tolist(),
    "list of rows": lambda tensor: [row.numpy() for row in tensor] if tensor.ndim == 2 else tuple(tensor.tolist()),
}


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("call", CALLS)
def test_arrays_and_lists_are_taken_as_tensors_are(call, given):
    expected, found = (torch.as_tensor(CALLS[call](of)).double() for of in (lambda tensor: tensor, GIVEN[given]))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_lists_go_with_tensors_of_any_kind():
    """What is no tensor takes the kind of what is."""
    few, many, ranks = U[:4], U[4:], RANKS[:, 4:]
    expected = ranked_info_nce_from_embeddings(few, many, ranks, TERMS)
    for queries, candidates in ((few.tolist(), many), (few, many.tolist()), (few.double().numpy(), many)):
        loss = ranked_info_nce_from_embeddings(queries, candidates, ranks.tolist(), TERMS)
        assert loss.dtype == torch.float32
        assert loss.item() == pytest.approx(expected.item(), rel=1e-6)


def test_numbers_of_a_list_keep_their_digits():
    near = [1 + 1e-12 * number for number in range(50)]
    shifted = [score + 2.05e-11 for score in near]
    truth = [1] * 50 + [0] * 50
    assert auroc(shifted, near) == pytest.approx(roc_auc_score(truth, np.array(shifted + near)))
    threshold = sorted(shifted, reverse=True)[47]  # accepts 48 of 50: 95 % at least
    assert fpr_at_recall(shifted, near) == sum(score >= threshold for score in near) / 50 == pytest.approx(0.54)
    assert fpr_at_recall(torch.tensor(shifted, dtype=torch.float64), np.array(near)) == fpr_at_recall(shifted, near)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([[1.0, 2.0], [1.0]], r"got \[\[1.0, 2.0\], \[1.0\]\] \(expected sequence of length 2"),
        ([["a"]], r"got \[\['a'\]\]"),
        ([[HUGE, 1.0]], r"got \[\[1000000.*…"),
        ([[10**5000, 1.0]], "a very long integer|got"),
        (np.array([["2020-01-01"]], dtype="datetime64[D]"), "datetime64"),
        (np.array([[None]]), "object"),
        (None, "got None"),
        (5, "got 5"),
    ],
)
def test_what_is_no_table_of_numbers_is_refused(values, reason):
    with pytest.raises(DataError, match=f"embeddings must be a tensor, an array or lists of numbers; .*{reason}"):
        alignment(values, [0])


COMPLEX = torch.complex(X, X)
REFUSED = [
    (lambda: recall_at_k(X, X, query_labels=Y, gallery_labels=Y, k=1.5), ConfigError, "k must be a whole number, at least 1; got 1.5"),
    (lambda: recall_at_k(X, X, query_labels=Y, gallery_labels=Y, k=HUGE), ConfigError, "k must be a whole number"),
    (lambda: recall_at_k(X, X, query_labels=Y, gallery_labels=Y, k=True), ConfigError, "got True"),
    (lambda: ndcg(X, X, query_labels=Y, gallery_labels=Y, rank_source=TREE, k=2.5), ConfigError, "got 2.5"),
    (lambda: precision_recall_curve(X, X, query_labels=Y, gallery_labels=Y, points=2.5), ConfigError, "points must be a whole number, at least 2"),
    (lambda: neighbour_score(X, X, k=1.5), ConfigError, "k must be a whole number"),
    (lambda: MemoryBank(1.5, 2), ConfigError, "size must be a whole number"),
    (lambda: MemoryBank(2, HUGE), ConfigError, "dim must be a whole number"),
    (lambda: MemoryBank(2**50, 2**13), ConfigError, "does not fit into memory"),
    (lambda: SampleRanks.from_neighbours(X, [1.5]), ConfigError, "each of counts must be a whole number"),
    (lambda: linear_temperatures(0.1, 0.2, 1.5), ConfigError, "ranks must be a whole number"),
    (lambda: linear_temperatures(NAN, 0.2, 3), ConfigError, "the first temperature must be a number, got nan"),
    (lambda: linear_temperatures(0.1, HUGE, 3), ConfigError, "the last temperature must be a number, got 1000"),
    (lambda: MemoryBank(2, 2, start="random", seed=HUGE), ConfigError, "seed must be a whole number"),
    (lambda: linear_probe(X, X, train_labels=Y, test_labels=Y, l2=HUGE), ConfigError, "l2 must be a number from 0, got 1000"),
    (lambda: ranked_info_nce_from_embeddings(X[:4], X, RANKS, TERMS, block_size=1.5), ConfigError, "block_size must be a whole"),
    (lambda: view_ranks(1.5, queries=2), DataError, "a rank is an integer between -1 and 127, got 1.5"),
    (lambda: InstanceRanks(300), DataError, "a rank is an integer between -1 and 127, got 300"),
    (lambda: InstanceRanks()(np.array([2**64 - 1], np.uint64), [0]), DataError, "query_labels holds integers from 2**63 on"),
    (lambda: RankedInfoNCE(TERMS).count(RANKS + 0.5), ShapeError, "ranks must be integers"),
    (lambda: RankedInfoNCE(TERMS).count(RANKS > 0), ShapeError, "ranks must be integers"),
    (lambda: MomentumTwin(torch.nn.Identity(), None), ConfigError, "momentum must be a number, got None"),
    (lambda: MomentumTwin(torch.nn.Identity(), HUGE), ConfigError, "momentum must be a number, got 1000"),
    (lambda: InstanceRanks(HUGE), DataError, "a rank is an integer between -1 and 127, got 1000"),
    (lambda: RankTerm(HUGE), ConfigError, "temperature must be positive, got 1000"),
    (lambda: RankedInfoNCE([RankTerm(0.1)] * 128), ConfigError, "at most 127 terms; got 128"),
    (lambda: TableRanks.from_similarity(X[:5] @ X[:5].T, [NAN]), ConfigError, "thresholds must fall from rank to rank"),
    (lambda: SampleRanks(X, [NAN]), ConfigError, "limits of cosine must fall from rank to rank, got [nan]"),
    (lambda: SampleRanks(X, [HUGE], metric="euclidean"), DataError, "limits must be a tensor, an array or lists"),
    (lambda: linear_probe(X, X, train_labels=Y + 0.5, test_labels=Y), ShapeError, "train_labels must hold one integer per vector: got torch.float32"),
    (lambda: linear_probe(X, X, train_labels=Y, test_labels=Y, l2=NAN), ConfigError, "l2 must be a number from 0, got nan"),
    (lambda: linear_probe(X, X, train_labels=Y, test_labels=Y, l2=-1), ConfigError, "l2 must be a number from 0, got -1"),
    (lambda: linear_probe(X * 1e30, X, train_labels=Y, test_labels=Y, protocol="paper"), DataError, "as they are, and diverged"),
    (lambda: fast_ap(U, Y, bins=1.5), ConfigError, "bins must be a whole number"),
    (lambda: paired_difference([X[0]], [X[1]], resamples=0.5), ConfigError, "resamples must be a whole number"),
    (lambda: RankedTriplet((NAN,)), ConfigError, "margins must be positive"),
    (lambda: RankedTriplet((0.5, 1.0))(U[:4] @ U.T, RANKS, [0, 1]), DataError, "divisor must be positive"),
    (lambda: uniformity(X, t=NAN), ConfigError, "t must be positive, got nan"),
    (lambda: ClassGaussians(X, Y, regularisation=float("inf")), ConfigError, "regularisation must be positive"),
    (lambda: recall_at_k(COMPLEX, COMPLEX, query_labels=Y, gallery_labels=Y), ShapeError, "of real numbers, got torch.complex64"),
    (lambda: alignment(X, COMPLEX[:, 0]), ShapeError, "one integer per vector: got torch.complex64"),
    (lambda: auroc(COMPLEX[0], X[0]), ShapeError, "one real number per sample, got torch.complex64"),
    (lambda: SampleRanks(COMPLEX, [0.5]), ShapeError, "of real numbers, got torch.complex64"),
    (lambda: TableRanks.from_similarity(COMPLEX[:6, :6], [0.5]), ShapeError, "of real numbers, got torch.complex64"),
    (lambda: MemoryBank(50, 6).push(COMPLEX, Y), ShapeError, "(number, 6) for this bank, got torch.complex64"),
    (lambda: MemoryBank(50, 6).similarities(COMPLEX), ShapeError, "(number, 6) for this bank, got torch.complex64"),
    (lambda: MemoryBank(50, 6).push(X.double() * 1e300, Y), DataError, "40 of 40 keys hold NaN or infinite values, as float32"),
    (lambda: contrast(torch.nn.Identity(), MomentumTwin(torch.nn.Identity()), MemoryBank(9, 5), InstanceRanks(), X, [X], Y), ShapeError, "a bank has the width of the encoder's embeddings"),
    (lambda: contrast(torch.nn.Identity(), MomentumTwin(torch.nn.Identity()), MemoryBank(9, 6), InstanceRanks(), X, [X], Y, own_ranks=[300]), DataError, "got 300"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "text"), REFUSED, ids=[case[2][:40] for case in REFUSED])
def test_nonsense_gets_one_clear_sentence(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("kind", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32])
def test_labels_of_any_integer_are_labels(kind):
    """254 and 255 of uint8 are -2 and -1 in a byte; they are samples like any other."""
    largest = torch.iinfo(kind).max
    labels = torch.tensor([3, largest - 1, largest], dtype=kind)
    same = torch.eye(3, dtype=torch.int8)
    assert InstanceRanks()(labels, labels).equal(same)
    assert InstanceRanks()(labels.long(), labels).equal(same)
    bank = MemoryBank(5, 2)
    bank.push(torch.zeros(3, 2), labels)
    assert bank.labels.tolist() == [3, largest - 1, largest, -1, -1]
    if largest < 1000:
        table = torch.zeros(largest + 1, largest + 1, dtype=torch.int8).fill_diagonal_(1)
        assert TableRanks(table)(labels, labels).equal(same)
        assert SampleRanks(torch.eye(largest + 1), [0.5])(labels, labels).equal(same)


@pytest.mark.parametrize("kind", [torch.uint16, torch.uint32, torch.uint64])
def test_ranks_of_unsigned_integers_are_ranks(kind):
    """torch keeps them, and can neither compare them nor find the largest."""
    ranks, queries, candidates = RANKS[:, 4:].clamp(min=0), U[:4], U[4:]
    similarities, loss = queries @ candidates.T, RankedInfoNCE(TERMS)
    for given in (ranks.to(kind), ranks.numpy().astype(str(kind).removeprefix("torch."))):
        assert loss(similarities, given).total.equal(loss(similarities, ranks).total)
        expected = loss.from_embeddings(queries, candidates, ranks).total
        assert loss.from_embeddings(queries, candidates, given).total.equal(expected)
        assert loss.from_embeddings(queries, candidates, lambda a, b, g=given: g[a:b]).total.equal(expected)
        assert loss.count(given).equal(loss.count(ranks))
        assert TableRanks(given[:, :4]).table.equal(ranks[:, :4].to(torch.int8))
    assert view_ranks(*np.array([1, 2]), queries=1).tolist() == [[1, 2]]


def test_own_ranks_of_a_tensor_do_not_wrap():
    own = torch.full((1, 40), 300)
    step = contrast(
        torch.nn.Identity(),
        MomentumTwin(torch.nn.Identity()),
        MemoryBank(9, 6),
        InstanceRanks(),
        X,
        [X],
        Y,
        own_ranks=own,
    )
    with pytest.raises(DataError, match="rank 127 but there are only 2 terms"):
        ranked_info_nce_from_embeddings(step.queries, step.candidates, step.ranks, TERMS)


def judged(vectors):
    """Every number that judges directions, and standardised features, of 40 labelled vectors."""
    known, asked = vectors[:30], vectors[30:]
    labels = {"query_labels": Y[30:], "gallery_labels": Y[:30]}
    return {
        "recall": recall_at_k(asked, known, **labels),
        "map": mean_average_precision(asked, known, **labels),
        "ndcg": ndcg(asked, known, **labels, rank_source=TREE),
        "order": rank_order_accuracy(asked, known, **labels, rank_source=TREE),
        "alignment": alignment(vectors, Y),
        "uniformity": uniformity(vectors),
        "similarity": class_similarity(vectors, Y),
        "full": ClassGaussians(known, Y[:30]).score(asked),
        "tied": ClassGaussians(known, Y[:30], covariance="tied").score(asked),
        "neighbours": neighbour_score(asked, known, k=3),
        "probe": linear_probe(known, asked, train_labels=Y[:30], test_labels=Y[30:]).accuracy,
        "ranks": SampleRanks(vectors, [0.5, 0.2])(Y, torch.arange(40)),
    }


SCALES = [
    (torch.float32, 2.0**-45), (torch.float32, 2.0**-90), (torch.float32, 2.0**100), (torch.float32, 1e-13),
    (torch.float32, 1e30), (torch.float64, 1e-200), (torch.float64, 1e200), (torch.float16, 2.0**-6),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "factor"), SCALES)
def test_length_does_not_matter(dtype, factor):
    plain = X.half() if dtype == torch.float16 else X
    expected, found = judged(plain.float()), judged((plain.to(dtype) * factor).to(dtype))
    for name, value in expected.items():
        torch.testing.assert_close(
            torch.as_tensor(found[name]).double(), torch.as_tensor(value).double(), rtol=1e-4, atol=1e-5, msg=name
        )


def test_rows_of_all_lengths_become_of_unit_length():
    rows = torch.tensor([[3.0, 4.0], [3e-20, 4e-20], [3e30, 4e30], [0.0, 0.0], [3e-13, -4e-13]], dtype=torch.float64)
    expected = torch.tensor([[0.6, 0.8], [0.6, 0.8], [0.6, 0.8], [0.0, 0.0], [0.6, -0.8]])
    for kind in (torch.float32, torch.float64):
        torch.testing.assert_close(unit_rows(rows.to(kind)), expected)
    torch.testing.assert_close(unit_rows(torch.tensor([[3e300, -4e300]], dtype=torch.float64)), expected[4:])


def test_usual_vectors_keep_their_bits():
    assert unit_rows(X).equal(torch.nn.functional.normalize(X, dim=1))


def test_a_tensor_is_not_copied():
    array = X.numpy()
    assert as_tensor(X, "x") is X
    assert as_tensor(array, "x").data_ptr() == X.data_ptr()
