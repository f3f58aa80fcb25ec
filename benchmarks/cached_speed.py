"""A batch in chunks (`CachedLoss`) beside the same batch in one piece: memory of the graph and time, as ratios.

    python benchmarks/cached_speed.py

2 × 1,024 samples through five linear layers with GELU, three ranks, forward and backward, one thread, processor time.
Memory is what autograd keeps for the backward pass at its peak, counted tensor by tensor. Writes `cached_speed.csv`
beside this file, with the load of the machine.
"""

import csv
import os
import platform
import time
from collections import Counter
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import rince
from measure import Contender, processor, ratios

CSV = Path(__file__).with_suffix(".csv")
SAMPLES, INPUTS, WIDTH, DIM = 1024, 256, 1024, 128
CHUNKS = (512, 256, 128, 64)
ROUNDS = 7


class Kept:
    """Bytes that autograd keeps, now and at most; what is kept twice counts once."""

    def __init__(self) -> None:
        self.storages: Counter[int] = Counter()
        self.now = self.peak = 0

    def pack(self, tensor: torch.Tensor) -> "_Held":
        return _Held(self, tensor)


class _Held:
    def __init__(self, kept: Kept, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self.kept, self.tensor, self.place, self.size = kept, tensor, storage.data_ptr(), storage.nbytes()
        kept.storages[self.place] += 1
        kept.now += self.size * (kept.storages[self.place] == 1)
        kept.peak = max(kept.peak, kept.now)

    def __del__(self) -> None:
        self.kept.storages[self.place] -= 1
        self.kept.now -= self.size * (self.kept.storages[self.place] == 0)


class Problem:
    """Two views of a batch, an encoder, and ranks."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [nn.Linear(INPUTS, WIDTH), nn.GELU()]
        for _ in range(3):
            layers += [nn.Linear(WIDTH, WIDTH), nn.GELU()]
        self.encoder = nn.Sequential(*layers, nn.Linear(WIDTH, DIM))
        self.views = [torch.randn(SAMPLES, INPUTS) for _ in range(2)]
        self.labels = torch.randint(20, (SAMPLES,))
        self.source = rince.TableRanks.from_tree([f"{label // 5}/{label}" for label in range(20)])
        self.loss = rince.RankedInfoNCE.out_in((0.1, 0.2))

    def value(self, *embeddings: torch.Tensor) -> torch.Tensor:
        unit = [F.normalize(each, dim=1) for each in embeddings]
        return rince.in_batch(unit, self.labels, self.source).loss(self.loss).total

    def in_one_piece(self) -> None:
        self.encoder.zero_grad()
        self.value(*(self.encoder(view) for view in self.views)).backward()

    def in_chunks(self, chunk: int) -> Contender:
        cached = rince.CachedLoss(self.encoder, chunk)

        def step() -> None:
            self.encoder.zero_grad()
            cached(self.views, self.value)

        return step


def peak(step: Contender) -> int:
    kept = Kept()
    with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda held: held.tensor):
        step()
    return kept.peak


def main() -> None:
    torch.set_num_threads(1)
    problem, load = Problem(), os.getloadavg()[0]
    contenders: dict[str, Contender] = {"one piece": problem.in_one_piece}
    contenders |= {f"chunks of {chunk}": problem.in_chunks(chunk) for chunk in CHUNKS}
    memory = {name: peak(step) for name, step in contenders.items()}
    times = ratios(contenders, ROUNDS, time.process_time)
    machine = (torch.__version__, platform.python_version(), processor(), f"{load:.1f}, {os.getloadavg()[0]:.1f}")
    with CSV.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        columns = ["torch", "python", "processor", "load average of the machine before and after"]
        writer.writerow(["samples", "what", "kept bytes", "× memory", "× time", *columns])
        for name, ratio in times.items():
            share = memory[name] / memory["one piece"]
            print(f"{name:15} {memory[name] / 2**20:7.1f} MB kept, {share:5.2f} × memory, {ratio:5.2f} × time")
            writer.writerow([f"2 × {SAMPLES}", name, memory[name], f"{share:.3f}", f"{ratio:.2f}", *machine])


if __name__ == "__main__":
    main()
