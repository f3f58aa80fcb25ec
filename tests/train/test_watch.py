"""What is told of a step, against naive counting; and what is worth a warning."""

import pytest
import torch

from rince.methods.summary import similarity_summary
from rince.train.watch import Watch


def naive_violated(similarities, ranks, closer, further):
    wrong = pairs = 0
    for row, row_ranks in zip(similarities.tolist(), ranks.tolist(), strict=True):
        for a, rank_a in zip(row, row_ranks, strict=True):
            for b, rank_b in zip(row, row_ranks, strict=True):
                if (rank_a, rank_b) == (closer, further):
                    pairs += 1
                    wrong += a < b
    return wrong / pairs


def test_summary_equals_naive_counting():
    torch.manual_seed(0)
    similarities, ranks = torch.rand(5, 30), torch.randint(-1, 4, (5, 30), dtype=torch.int8)
    summary = similarity_summary(similarities, ranks, terms=3)
    assert set(summary) == {f"similarity/{r}" for r in (1, 2, 3, "negative")} | {f"violated/{r}" for r in (1, 2, 3)}
    for rank, name in ((1, "1"), (2, "2"), (3, "3"), (0, "negative")):
        chosen = [
            s for s, r in zip(similarities.flatten().tolist(), ranks.flatten().tolist(), strict=True) if r == rank
        ]
        assert summary[f"similarity/{name}"] == pytest.approx(sum(chosen) / len(chosen))
    for closer, further in ((1, 2), (2, 3), (3, 0)):
        assert summary[f"violated/{closer}"] == naive_violated(similarities, ranks, closer, further)


def test_empty_ranks_are_left_out_of_the_summary():
    summary = similarity_summary(torch.rand(2, 3), torch.tensor([[1, 0, -1], [1, 0, 0]]), terms=2)
    assert set(summary) == {"similarity/1", "similarity/negative"}


def line(epoch, negative=0.1):
    return {"epoch": epoch, "similarity/negative": negative}


def test_a_rank_that_is_always_empty_is_told_once():
    watch = Watch(3, steps_per_epoch=3)

    def look(epoch, used):
        watch.count({f"queries/{rank}": torch.tensor(number) for rank, number in enumerate(used, start=1)})
        return watch.look(line(epoch))

    assert look(4, [5, 0, 0]) == []  # a run that was resumed; a whole epoch has to pass all the same
    assert look(4, [5, 0, 3]) == []
    (warning,) = look(5, [5, 0, 3])
    assert "rank 2 was empty in every batch" in warning
    assert look(1, [5, 0, 3]) == []


def test_collapse_is_told_once_and_not_at_the_very_start():
    watch = Watch(1, steps_per_epoch=3)
    assert watch.look(line(0, negative=0.99)) == []
    (warning,) = watch.look(line(1, negative=0.99))
    assert "the embedding has collapsed; try a lower optimizer.lr" in warning
    assert watch.look(line(2, negative=0.99)) == []


def ended(wrong, temperatures, lines=20):
    watch = Watch(3, steps_per_epoch=3, temperatures=temperatures)
    for _ in range(lines):
        watch.look(line(5) | {f"violated/{rank}": share for rank, share in enumerate(wrong, start=1)})
    return watch.end()


def test_ranks_that_end_equally_close_are_told_with_what_to_try():
    (warning,) = ended([0.5, 0.1, 0.0], [0.1, 0.15, 0.35])
    assert "ranks 1 and 2 end equally close: 50 %" in warning
    assert "loss.terms.1.temperature=0.225 (now 0.15" in warning
    (warning,) = ended([0.1, 0.5, 0.5], [0.1, 0.225, 0.35])  # the last is against negatives, of no rank
    assert "ranks 2 and 3" in warning
    assert "loss.terms.2.temperature=0.475 (now 0.35" in warning


def test_ranks_in_order_and_runs_of_few_lines_are_not_told():
    assert ended([0.44, 0.2, 0.5], [0.1, 0.2, 0.3]) == []
    assert ended([0.5, 0.5, 0.5], [0.1, 0.2, 0.3], lines=4) == []
