"""The table of equals in `docs/choosing.md`: a test behind every line, in value and in gradient."""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning.losses import FastAPLoss, NTXentLoss, SelfSupervisedLoss, SupConLoss

import rince
from rince.losses.fast_ap import fast_ap

PAGE = Path(__file__).parents[2] / "docs" / "choosing.md"
SAMPLES, LABELS = 12, torch.arange(12) % 4
ONE_OF_ALL = torch.arange(SAMPLES)


def features(*seeds):
    return [torch.randn(SAMPLES, 8, generator=torch.Generator().manual_seed(s)).double() for s in seeds]


def cross_entropy(one, two):
    ranks = torch.eye(SAMPLES, dtype=torch.int8)
    ours = rince.ranked_info_nce_from_embeddings(one, two, ranks, [rince.RankTerm(0.1)])
    return ours, F.cross_entropy(one @ two.T / 0.1, ONE_OF_ALL)


def ntxent(one, two):
    pooled = rince.RankedInfoNCE.out(0.1, over_positives="pooled")
    ours = rince.in_batch([one, two], LABELS).loss(pooled).total
    return ours, NTXentLoss(temperature=0.1)(torch.cat([one, two]), LABELS.repeat(2))


def self_supervised(one, two):
    """SimCLR: no labels, and the views of a sample alone belong together."""
    return rince.in_batch([one, two]).loss(rince.RankedInfoNCE.in_(0.1)).total, SelfSupervisedLoss(NTXentLoss(0.1))(
        one, two
    )


def supcon(one, two):
    loss = rince.RankedInfoNCE([rince.RankTerm(0.1, "out", denominator="all")])
    ours = rince.in_batch([one, two], LABELS).loss(loss).total
    return ours, SupConLoss(temperature=0.1)(torch.cat([one, two]), LABELS.repeat(2))


def supcontrast(one, two):
    """Written out from the SupCon paper, L_out of its equation 2; SupContrast gives it times τ / 0.07."""
    ours = rince.in_batch([one, two], LABELS).loss(rince.RankedInfoNCE([rince.RankTerm(0.1, "out", denominator="all")]))
    everything, labels, values = torch.cat([one, two]), LABELS.repeat(2), []
    for i, query in enumerate(everything):
        others = [j for j in range(len(labels)) if j != i]
        below = sum(torch.exp(query @ everything[j] / 0.1) for j in others)
        positives = [j for j in others if labels[j] == labels[i]]
        values.append(-sum((query @ everything[p] / 0.1) - below.log() for p in positives) / len(positives))
    return ours.total, sum(values) / len(values)


def solo_learn(one, two):
    """Written out: the share that all positives have together, MIL-NCE's too."""
    ours = rince.in_batch([one, two], LABELS).loss(rince.RankedInfoNCE.in_(0.1)).total
    everything, labels, values = torch.cat([one, two]), LABELS.repeat(2), []
    for i, query in enumerate(everything):
        of = {j: torch.exp(query @ everything[j] / 0.1) for j in range(len(labels)) if j != i}
        values.append(-(sum(v for j, v in of.items() if labels[j] == labels[i]) / sum(of.values())).log())
    return ours, sum(values) / len(values)


def clip(one, two):
    modeling_clip = pytest.importorskip("transformers.models.clip.modeling_clip")
    ours = rince.two_towers(one, two).loss(rince.RankedInfoNCE.in_(0.1)).total
    return ours, modeling_clip.image_text_contrastive_loss(one @ two.T / 0.1)


def of_sentence_transformers(name, one, two, **options):
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    loss = getattr(losses, name)(torch.nn.Sequential(torch.nn.Identity()), scale=10.0, **options)
    if hasattr(loss, "compute_loss_from_embeddings"):
        return loss.compute_loss_from_embeddings([one, two], None)
    return loss.calculate_loss([[one[:5], one[5:]], [two[:5], two[5:]]])


def multiple_negatives(one, two):
    ours = rince.two_towers(one, two).forth.loss(rince.RankedInfoNCE.in_(0.1)).total
    return ours, of_sentence_transformers("MultipleNegativesRankingLoss", one, two)


def cached_multiple_negatives(one, two):
    ours = rince.two_towers(one, two).forth.loss(rince.RankedInfoNCE.in_(0.1)).total
    return ours, of_sentence_transformers("CachedMultipleNegativesRankingLoss", one, two, mini_batch_size=5)


def symmetric_multiple_negatives(one, two):
    ours = rince.two_towers(one, two).loss(rince.RankedInfoNCE.in_(0.1)).total
    both = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
    return ours, of_sentence_transformers("MultipleNegativesRankingLoss", one, two, **both)


def fast_average_precision(one, two):
    both, labels = torch.cat([one, two]).float(), LABELS.repeat(2)
    return fast_ap(both, labels, bins=10), FastAPLoss(num_bins=10)(both, labels)


EQUALS = {
    ("PyTorch", "F.cross_entropy(similarities / τ, index)"): cross_entropy,
    ("pytorch-metric-learning", "NTXentLoss"): ntxent,
    ("pytorch-metric-learning", "SelfSupervisedLoss(NTXentLoss())"): self_supervised,
    ("pytorch-metric-learning", "SupConLoss"): supcon,
    ("pytorch-metric-learning", "FastAPLoss"): fast_average_precision,
    ("SupContrast", "SupConLoss"): supcontrast,
    ("solo-learn", "simclr_loss_func"): solo_learn,
    ("transformers", "image_text_contrastive_loss"): clip,
    ("sentence-transformers", "MultipleNegativesRankingLoss"): multiple_negatives,
    ("sentence-transformers", "CachedMultipleNegativesRankingLoss"): cached_multiple_negatives,
    ("sentence-transformers", "MultipleNegativesRankingLoss, per_direction"): symmetric_multiple_negatives,
}


@pytest.mark.parametrize("line", EQUALS, ids=" ".join)
def test_the_losses_of_a_line_are_equal(line):
    given = [each.requires_grad_() for each in features(1, 2)]
    # Some of theirs give unit length themselves, so that gradients compare before it.
    ours, theirs = EQUALS[line](*(F.normalize(each, dim=1) for each in given))
    precise = theirs.dtype == torch.float64
    torch.testing.assert_close(ours, theirs, rtol=1e-9 if precise else 1e-5, atol=0)
    assert ours > 0.01
    gradients = (torch.autograd.grad(each, given, retain_graph=True) for each in (ours, theirs))
    for mine, other in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-10 if precise else 1e-6)


def test_supcon_departs_where_the_page_says():
    ours, theirs = rince.RankedInfoNCE([rince.RankTerm(0.1, "out", denominator="all")]), SupConLoss(temperature=0.1)
    (given,) = (F.normalize(each, dim=1) for each in features(1))
    one_class = torch.zeros_like(LABELS)
    assert theirs(given, one_class) == 0 < rince.in_batch(given, one_class).loss(ours).total
    close, others = torch.eye(1, 8).double().expand(2, 8), given[:4].clone()
    others[:, 0] = 0
    done = torch.cat([close, F.normalize(others, dim=1)])  # the first two are worth 0 to the last digit
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    sharp = rince.RankedInfoNCE([rince.RankTerm(0.005, "out", denominator="all")])
    values = [float(each) for each in (rince.in_batch(done, labels).loss(sharp).total, SupConLoss(0.005)(done, labels))]
    assert values[1] == pytest.approx(values[0] * 6 / 4, rel=1e-9)


def test_every_line_of_the_table_has_its_test():
    rows = re.findall(r"^\| ([\w -]+) \| `([^`]+)`[^|]*\|[^|]+\|$", PAGE.read_text(), flags=re.MULTILINE)
    assert rows == list(EQUALS)
