"""Speed of the ranked loss within a batch, as ratios to one in-batch InfoNCE of the same size measured in the same run.

    python benchmarks/in_batch_speed.py

2 × 4,096 embeddings of 128, all against all, three ranks, forward and backward, eager, one thread. The yardstick is
what nobody can do without: one matrix product, the diagonal taken out, `F.cross_entropy`. How much the ranked loss
costs depends on how many of the pairs are positive: 2 %, 5 % and 35 %, the last as in real trees (the departments of
Grocery Store). Making the ranks from labels is part of it. Times are those of the processor, so that other work on the
machine changes little; how much of it there was stands in the last column, as the load before and after. Writes
`in_batch_speed.csv` beside this file.
"""

import csv
import os
import platform
import time
from pathlib import Path

import pytorch_metric_learning
import sentence_transformers
import torch
import torch.nn.functional as F
from pytorch_metric_learning.losses import SupConLoss
from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss

import rince
from measure import Contender, processor, ratios

CSV = Path(__file__).with_suffix(".csv")
SAMPLES, DIM = 4096, 128
TEMPERATURES = (0.1, 0.15, 0.2)
ROUNDS = 5
# Shares of the groups at the top; each has 4 groups of 3 classes.
DEPARTMENTS = {"2 %": [1 / 50] * 50, "5 %": [1 / 20] * 20, "35 %": [0.45, 0.30, 0.25]}


class Problem:
    """Two views of a batch whose labels are leaves of a tree."""

    def __init__(self, departments: list[float]) -> None:
        torch.manual_seed(0)
        self.views = [F.normalize(torch.randn(SAMPLES, DIM), dim=1).requires_grad_() for _ in range(2)]
        paths = [
            f"{top}/{middle}/{leaf}" for top in range(len(departments)) for middle in range(4) for leaf in range(3)
        ]
        self.labels = torch.multinomial(torch.tensor(departments).repeat_interleave(12), SAMPLES, replacement=True)
        self.source = rince.TableRanks.from_tree(paths)

    def positive_share(self) -> float:
        return float((rince.in_batch(self.views, self.labels, self.source).ranks > 0).float().mean())

    def backward(self, loss: torch.Tensor) -> None:
        for view in self.views:
            view.grad = None
        loss.backward()

    def info_nce(self) -> None:
        embeddings = torch.cat(self.views)
        similarities = (embeddings @ embeddings.T / 0.1).fill_diagonal_(-torch.inf)
        self.backward(F.cross_entropy(similarities, torch.arange(2 * SAMPLES).roll(SAMPLES)))

    def ranked(self, variant: str) -> Contender:
        loss = getattr(rince.RankedInfoNCE, variant)(TEMPERATURES)
        return lambda: self.backward(rince.in_batch(self.views, self.labels, self.source).loss(loss).total)

    def supcon(self) -> None:
        loss = rince.RankedInfoNCE([rince.RankTerm(0.1, "out", denominator="all")])
        self.backward(rince.in_batch(self.views, self.labels).loss(loss).total)

    def their_supcon(self) -> None:
        self.backward(SupConLoss(temperature=0.1)(torch.cat(self.views), self.labels.repeat(2)))

    def their_cached_loss(self) -> None:
        """Their InfoNCE within the batch, blocks of rows with a backward pass each; embeddings are there already."""
        directions = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")
        model = torch.nn.Sequential(torch.nn.Identity())  # is not asked
        loss = CachedMultipleNegativesRankingLoss(model, scale=10.0, mini_batch_size=256, directions=directions)
        for view in self.views:
            view.grad = None
        loss.calculate_loss([[view] for view in self.views], with_backward=True)


def main() -> None:
    torch.set_num_threads(1)
    rows: list[tuple[str, str, float]] = []
    load_before = os.getloadavg()[0]
    for name, departments in DEPARTMENTS.items():
        problem = Problem(departments)
        contenders: dict[str, Contender] = {"InfoNCE (yardstick)": problem.info_nce}
        contenders |= {f"RINCE-{variant.strip('_')}": problem.ranked(variant) for variant in ("in_", "out")}
        contenders["SupCon (denominator=all, one rank)"] = problem.supcon
        contenders["pytorch-metric-learning SupConLoss"] = problem.their_supcon
        contenders["sentence-transformers CachedMultipleNegativesRankingLoss"] = problem.their_cached_loss
        print(f"{name}: {problem.positive_share():.1%} of the pairs are positive", flush=True)
        for what, ratio in ratios(contenders, ROUNDS, time.process_time).items():
            rows.append((name, what, ratio))
            print(f"{name:5} {what:60} {ratio:6.2f} × InfoNCE", flush=True)
    load = f"{load_before:.1f}, {os.getloadavg()[0]:.1f}"
    versions = (torch.__version__, pytorch_metric_learning.__version__, sentence_transformers.__version__)
    machine = (*versions, platform.python_version(), processor(), load)
    columns = "torch,pml,sentence-transformers,python,processor,load average of the machine before and after"
    with CSV.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["samples", "positive pairs", "what", "× InfoNCE", *columns.split(",")])
        writer.writerows([f"2 × {SAMPLES}", name, what, f"{ratio:.2f}", *machine] for name, what, ratio in rows)


if __name__ == "__main__":
    main()
