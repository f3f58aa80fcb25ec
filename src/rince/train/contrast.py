"""Momentum contrast: the paper's method, and every row of its tables that differs in ranks and terms only."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rince.bank import MemoryBank
from rince.baselines.triplet import RankedTriplet
from rince.config import Recipe, TripletMethod
from rince.data.order import permutation
from rince.errors import DataError
from rince.loss import LossOutput, RankedInfoNCE
from rince.moco import contrast, contrast_ranks
from rince.models.encoder import Encoder
from rince.momentum import MomentumTwin
from rince.train.feed import Step
from rince.train.method import Method, Outcome
from rince.train.runtime import Runtime
from rince.train.setup import Parts, build_loss
from rince.train.watch import WATCHED, similarity_summary


class MomentumContrast(Method):
    """Queries from the encoder against keys from its twin: own key and bank."""

    def __init__(self, recipe: Recipe, parts: Parts, encoder: Encoder, runtime: Runtime) -> None:
        super().__init__(recipe, parts, encoder, runtime)
        self.loss: RankedInfoNCE | RankedTriplet
        if isinstance(recipe.method, TripletMethod):
            self.loss = RankedTriplet(recipe.method.margins)
        else:
            self.loss = build_loss(recipe)
        self.twin = MomentumTwin(encoder, recipe.twin.momentum, buffers=recipe.twin.buffers).to(runtime.device)
        bank = MemoryBank(recipe.bank.size, encoder.dim, start=recipe.bank.start, seed=recipe.seed)
        self.bank = bank.to(runtime.device)
        # A recipe may have more terms than the taxonomy has ranks; the last rank there is meets the negatives.
        self.rank_count = min(self.loss.rank_count, parts.rank_count)
        if recipe.model.compile:
            self.twin.module.compile()

    def modules(self) -> dict[str, nn.Module]:
        """Twin and bank."""
        return {"twin": self.twin, "bank": self.bank}

    def step(self, encoder: nn.Module, step: Step, *, logged: bool) -> Outcome:
        """One step of the paper: contrast with the bank as it is, push the keys, move the twin."""
        recipe, runtime, rank_source = self.recipe, self.runtime, self.parts.rank_source
        counted = self.loss.count(contrast_ranks(step.labels, self.bank, rank_source))
        # DDP averages gradients over processes; with this divisor that is the gradient of the whole batch's loss.
        divisor = runtime.total(counted.double()) / runtime.processes
        twin = _ShuffledTwin(self.twin, runtime, step) if recipe.train.batch_norm == "shuffled" else self.twin
        outputs, keys, summary = [], [], None
        query_view, key_view = step.views
        parts = torch.arange(len(step.labels)).tensor_split(recipe.train.accumulate)
        for number, part in enumerate(parts, start=1):
            with runtime.no_sync(encoder, enabled=number < len(parts)):
                with runtime.autocast():
                    views = query_view[part], [key_view[part]]
                    now = contrast(encoder, twin, self.bank, rank_source, *views, step.labels[part])
                try:
                    output = self.loss.from_embeddings(now.queries, now.candidates, now.ranks, divisor=divisor.float())
                except DataError as error:
                    raise DataError(f"step {step.step}: {error}") from None
                runtime.backward(output.total)
            outputs.append(output)
            keys.append(now.keys[0])
            if logged and summary is None:
                some = now.queries[:WATCHED].detach() @ now.candidates.T
                summary = similarity_summary(some, now.ranks[:WATCHED], self.rank_count)
        self.bank.push(runtime.gather(torch.cat(keys).float(), step.sizes), runtime.gather(step.labels, step.sizes))
        self.twin.update(self.raw)
        return Outcome(_values(outputs, runtime), summary)


def _values(outputs: list[LossOutput], runtime: Runtime) -> dict[str, float]:
    """Loss and terms of all parts and processes, as plain numbers."""
    total = runtime.total(torch.stack([output.total.detach() for output in outputs]).sum()) / runtime.processes
    per_rank = runtime.total(torch.stack([output.per_rank for output in outputs]).sum(dim=0)) / runtime.processes
    used = runtime.total(torch.stack([output.queries_used for output in outputs]).sum(dim=0))
    values = {"loss": total.item()}
    for rank, (value, queries) in enumerate(zip(per_rank.tolist(), used.tolist(), strict=True), start=1):
        values[f"term/{rank}"] = value
        values[f"queries/{rank}"] = queries
    return values


class _ShuffledTwin:
    """Keys made in another split of the batch, so that batch statistics do not tell a query which key is its own."""

    def __init__(self, twin: MomentumTwin, runtime: Runtime, step: Step) -> None:
        self.twin, self.runtime, self.step = twin, runtime, step

    def __call__(self, view: Tensor) -> Tensor:
        if self.runtime.processes == 1:
            keys: Tensor = self.twin(view)
            return keys
        sizes, process = self.step.sizes, self.runtime.process
        whole = self.runtime.gather(view, sizes)
        shuffle = permutation(len(whole), self.step.step, 0).to(whole.device)
        start = sum(sizes[:process])
        own = slice(start, start + sizes[process])
        keys = self.twin(whole[shuffle][own])
        back = torch.empty_like(shuffle)
        back[shuffle] = torch.arange(len(whole), device=whole.device)
        return self.runtime.gather(keys, sizes)[back][own]
