"""Speed and memory of the ranked loss, as ratios to plain InfoNCE measured in the same run.

    make bench        (leave the machine alone while it runs)

The yardstick is what nobody can do without: one matrix product and `F.cross_entropy`, forward and backward, on the
same sizes. Every round times every contender once, in turn; a ratio is the median over rounds of the ratio within the
round, so that a slow moment of the machine touches both sides. Writes `loss_speed.csv` beside this file.
"""

import csv
import platform
import subprocess
import sys
import warnings
from pathlib import Path

import pytorch_metric_learning
import torch
import torch.nn.functional as F
from pytorch_metric_learning.losses import SupConLoss

import rince
from measure import Contender, processor, ratios

CSV = Path(__file__).with_suffix(".csv")
DIM, CLASSES, PER_SUPERCLASS = 128, 100, 5
TEMPERATURES = (0.1, 0.225)
ROUNDS = 21


class Problem:
    """Queries, candidates and labels of one size."""

    def __init__(self, queries: int, candidates: int) -> None:
        torch.manual_seed(0)
        self.queries = F.normalize(torch.randn(queries, DIM), dim=1).requires_grad_()
        self.candidates = F.normalize(torch.randn(candidates, DIM), dim=1)
        self.query_labels = torch.randint(0, CLASSES, (queries,))
        self.candidate_labels = torch.randint(0, CLASSES, (candidates,))
        self.source = rince.TableRanks.from_superclasses(torch.arange(CLASSES) // PER_SUPERCLASS)
        self.ranks = self.source(self.query_labels, self.candidate_labels)

    def backward(self, loss: torch.Tensor) -> None:
        self.queries.grad = None
        loss.backward()

    def info_nce(self) -> None:
        target = torch.zeros(len(self.queries), dtype=torch.long)
        self.backward(F.cross_entropy(self.queries @ self.candidates.T / 0.1, target))

    def from_embeddings(self, variant: str, **options: bool) -> Contender:
        loss = getattr(rince.RankedInfoNCE, variant)(TEMPERATURES)
        return lambda: self.backward(loss.from_embeddings(self.queries, self.candidates, self.ranks, **options).total)

    def dense(self, variant: str) -> Contender:
        loss = getattr(rince.RankedInfoNCE, variant)(TEMPERATURES)
        return lambda: self.backward(loss(self.queries @ self.candidates.T, self.ranks).total)

    def supcon(self) -> Contender:
        loss = SupConLoss(temperature=0.1)
        return lambda: self.backward(
            loss(self.queries, self.query_labels, ref_emb=self.candidates, ref_labels=self.candidate_labels)
        )

    def many_ranks(self, number: int, **options: bool) -> Contender:
        """A tree with `number` ranks, the same share of positives in all of them."""
        loss = rince.RankedInfoNCE.in_(rince.linear_temperatures(0.1, 0.3, number))
        ranks = torch.where(self.ranks > 0, torch.randint(1, number + 1, self.ranks.shape), 0).to(torch.int8)
        return lambda: self.backward(loss.from_embeddings(self.queries, self.candidates, ranks, **options).total)


def speed(queries: int, candidates: int) -> dict[str, float]:
    problem = Problem(queries, candidates)
    contenders: dict[str, Contender] = {"InfoNCE (yardstick)": problem.info_nce}
    for variant, name in (("in_", "RINCE-in"), ("out", "RINCE-out")):
        contenders[f"{name} from embeddings, compiled"] = problem.from_embeddings(variant, compile=True)
        contenders[f"{name} from embeddings"] = problem.from_embeddings(variant)
    contenders["RINCE-in dense"] = problem.dense("in_")
    contenders["pytorch-metric-learning SupConLoss"] = problem.supcon()
    contenders["rank matrix from labels"] = lambda: problem.source(problem.query_labels, problem.candidate_labels)
    return ratios(contenders, ROUNDS)


def ranks(queries: int, candidates: int) -> dict[str, float]:
    problem = Problem(queries, candidates)
    results = {}
    for suffix, options in (("", {}), (", compiled", {"compile": True})):
        two = {f"2 ranks{suffix}": problem.many_ranks(2, **options)}
        results.update(ratios(two | {f"5 ranks{suffix}": problem.many_ranks(5, **options)}, ROUNDS))
    return results


def peak_memory() -> float:
    """MB above the inputs, of 2,048 × 65,536; run in a process of its own."""
    problem = Problem(2048, 65536)
    run = problem.from_embeddings("in_")
    torch.mm(torch.ones(256, 256), torch.ones(256, 256))  # the thread pool and its buffers are not the loss's
    Path("/proc/self/clear_refs").write_text("5")  # start the high-water mark anew
    before = _high_water_mark()
    run()
    return _high_water_mark() - before


def _high_water_mark() -> float:
    """MB of memory this process has held at once since the mark was reset (Linux)."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    if sys.argv[1:] == ["--memory"]:
        print(peak_memory())
        return
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")
    rows: list[tuple[str, str, float, str]] = []
    for queries, candidates in ((512, 4096), (128, 65536)):
        for name, ratio in speed(queries, candidates).items():
            rows.append((f"{queries} × {candidates}", name, ratio, "× InfoNCE"))
    rows += [("512 × 4096", name, ratio, "× 2 ranks") for name, ratio in ranks(512, 4096).items()]
    done = subprocess.run([sys.executable, __file__, "--memory"], capture_output=True, text=True, check=True)
    rows.append(("2048 × 65536", "RINCE-in from embeddings, peak memory above inputs", float(done.stdout), "MB"))
    versions = (torch.__version__, pytorch_metric_learning.__version__, platform.python_version(), processor())
    with CSV.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["queries × candidates", "what", "value", "unit", "torch", "pml", "python", "processor"])
        writer.writerows([size, name, f"{value:.2f}", unit, *versions] for size, name, value, unit in rows)
    for size, name, value, unit in rows:
        print(f"{size:14} {name:52} {value:8.2f} {unit}")


if __name__ == "__main__":
    main()
