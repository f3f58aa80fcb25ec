"""What a training step costs around its encoders, as a share of the encoders' own time, in one run.

    python benchmarks/step_speed.py        (leave the machine alone while it runs)

The encoders are the query's forward and backward and the key's forward, on a batch of the recipe (256 images of 32 × 32
at scale=reduced, 64 at scale=long), in float32; also in bfloat16, as a share of that. Every other part of the step is
timed by itself on the same batch, in turn, and told as a share of that; medians over rounds.
Freed memory is kept meanwhile, as in `rince train`. Also: how much faster channels-last and torch.compile make the
narrow encoder, forward and backward, as torch comes and with freed memory kept (which helps the contiguous one most);
medians of the ratio within a round. Writes `step_speed.csv` beside this.
"""

import csv
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from measure import Contender, ratios
from rince.bank import MemoryBank
from rince.config import Recipe, load_recipe
from rince.memory import keep_freed_memory
from rince.methods.method import build_loss
from rince.methods.summary import WATCHED, similarity_summary
from rince.moco import contrast_ranks
from rince.momentum import MomentumTwin
from rince.ranks import TableRanks
from rince.train.setup import build_encoder

CSV = Path(__file__).with_suffix(".csv")
BATCH = 256
SHAPE = (3, 32, 32)
REDUCED, LONG = ["scale=reduced"], ["scale=long"]
FULL_WIDTH = ["scale=reduced", "model.depth=18", "model.width=64", "model.stem=small"]


def parts_of_a_step(recipe: Recipe) -> dict[str, Callable[[], object]]:
    """Every part of a step as a function without arguments, the encoders first."""
    torch.manual_seed(0)
    batch = recipe.train.batch
    encoder = build_encoder(recipe, SHAPE, [100]).to(memory_format=torch.channels_last)
    twin, loss = MomentumTwin(encoder), build_loss(recipe)
    bank = MemoryBank(recipe.bank.size, recipe.model.dim, start="random")
    labels = torch.randint(0, 100, (batch,))
    for _ in range(recipe.bank.size // batch):
        bank.push(F.normalize(torch.randn(batch, recipe.model.dim), dim=1), torch.randint(0, 100, (batch,)))
    images = torch.randint(0, 256, (20_000, 3, 32, 32), dtype=torch.uint8)
    ids = torch.randperm(len(images))[:batch]
    make = recipe.views.build()
    source = TableRanks.from_superclasses(torch.arange(100) // 5)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    views = [make(images[ids], seed=0, epoch=0, view=view, sample_ids=ids) for view in (0, 1)]
    direction = torch.randn(batch, recipe.model.dim)
    queries = encoder(views[0]).detach().requires_grad_()
    keys = twin(views[1])
    ranks = contrast_ranks(labels, bank, source)

    def encoders() -> None:
        twin(views[1])
        (encoder(views[0]) * direction).sum().backward()

    def candidates() -> torch.Tensor:
        return torch.cat([keys, bank.keys])

    def similarities_and_loss() -> None:
        queries.grad = None
        loss.from_embeddings(queries, candidates(), ranks, divisor=loss.count(ranks)).total.backward()

    def views_and_data() -> None:
        for view in (0, 1):
            make(images[ids], seed=0, epoch=0, view=view, sample_ids=ids)

    def update() -> None:
        optimizer.step()

    def encoders_in_bfloat16() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            encoders()

    return {
        "encoders": encoders,
        "encoders in bfloat16": encoders_in_bfloat16,
        "views and data": views_and_data,
        "ranks": lambda: contrast_ranks(labels, bank, source),
        "similarities and loss": similarities_and_loss,
        "bank": lambda: bank.push(keys, labels),
        "twin": lambda: twin.update(encoder),
        "optimizer": update,
        "logging (every 10th step)": lambda: similarity_summary(
            queries[:WATCHED].detach() @ candidates().T, ranks[:WATCHED], loss.rank_count
        ),
    }


def medians(contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    for run in contenders.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def shares(name: str, overrides: list[str], rounds: int) -> list[tuple[str, str, float]]:
    """Time of every part as a share of the encoders', and of all of them together."""
    measured = medians(parts_of_a_step(load_recipe("cifar100/rince-in", overrides)), rounds)
    measured["logging (every 10th step)"] /= 10
    encoders, halved = measured.pop("encoders"), measured.pop("encoders in bfloat16")
    rows = [(name, part, value / encoders) for part, value in measured.items()]
    return [
        (name, "encoders in bfloat16", halved / encoders),
        *rows,
        (name, "all around the encoders", sum(measured.values()) / encoders),
    ]


def encoder_speed(name: str, rounds: int) -> list[tuple[str, str, float]]:
    """Speed of the narrow encoder against eager and contiguous."""
    torch.manual_seed(0)
    recipe = load_recipe("cifar100/rince-in", [*REDUCED, "model.channels_last=false"])
    images = torch.randn(BATCH, *SHAPE)
    contenders: dict[str, Contender] = {}
    for how, channels_last, compiled in (
        ("eager contiguous", False, False),
        ("eager channels-last", True, False),
        ("compiled channels-last", True, True),
    ):
        encoder = build_encoder(recipe, SHAPE, [100])
        if channels_last:
            encoder.to(memory_format=torch.channels_last)
        if compiled:
            encoder.compile()

        def run(encoder: torch.nn.Module = encoder) -> None:
            encoder.zero_grad()
            encoder(images).square().sum().backward()

        contenders[how] = run
    return [(name, how, 1 / ratio) for how, ratio in ratios(contenders, rounds).items()]


def main() -> None:
    speeds = encoder_speed("narrow encoder", rounds=40)
    keep_freed_memory()
    rows = [
        *[(*row, "of the encoders' time") for row in shares("reduced recipe", REDUCED, rounds=25)],
        *[(*row, "of the encoders' time") for row in shares("long recipe", LONG, rounds=100)],
        *[(*row, "of the encoders' time") for row in shares("ResNet-18", FULL_WIDTH, rounds=3)],
        *[
            (*row, "× the speed of eager contiguous")
            for row in (*speeds, *encoder_speed("narrow encoder, freed memory kept", rounds=40))
        ],
    ]
    with CSV.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["encoder", "part", "value", "unit", "torch", "python"])
        for encoder, part, value, unit in rows:
            writer.writerow([encoder, part, f"{value:.4f}", unit, torch.__version__, platform.python_version()])
            print(f"{encoder:34} {part:28} {value:8.3f} {unit}")


if __name__ == "__main__":
    main()
