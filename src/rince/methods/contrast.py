"""Momentum contrast: the paper's method, and every row of its tables that differs in ranks and terms only."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from rince.bank import MemoryBank
from rince.losses.triplet import RankedTriplet
from rince.config import Recipe, TripletMethod
from rince.sources.order import permutation
from rince.views.pixels import QUERY_VIEW
from rince.errors import DataError
from rince.loss import LossOutput, RankedInfoNCE
from rince.moco import contrast, contrast_ranks
from rince.encoders.encoder import Encoder
from rince.momentum import MomentumTwin
from rince.ranks import EXCLUDED
from rince.sources.feed import Step
from rince.methods.method import Method, Outcome
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
        self.views = (QUERY_VIEW, *parts.own_keys)
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
        own_ranks = self._own_ranks(step)
        counted = self.loss.count(contrast_ranks(step.labels, self.bank, rank_source, own_ranks))
        # DDP averages gradients over processes; with this divisor that is the gradient of the whole batch's loss.
        divisor = runtime.total(counted.double()) / runtime.processes
        twin = _ShuffledTwin(self.twin, runtime, step) if recipe.train.batch_norm == "shuffled" else self.twin
        outputs, keys, summary = [], [], None
        parts = torch.arange(len(step.labels)).tensor_split(recipe.train.accumulate)
        for number, part in enumerate(parts, start=1):
            with runtime.no_sync(encoder, enabled=number < len(parts)):
                with runtime.autocast():
                    query_view, *key_views = (view[part] for view in step.views)
                    now = contrast(
                        encoder,
                        twin,
                        self.bank,
                        rank_source,
                        query_view,
                        key_views,
                        step.labels[part],
                        own_ranks=own_ranks[:, part],
                    )
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

    def _own_ranks(self, step: Step) -> Tensor:
        """`(key views, samples)`: what a sample's own keys are to it; -1 where its video is too short for the clip."""
        ranks = torch.tensor(tuple(self.parts.own_keys.values()), dtype=torch.int8, device=step.labels.device)
        ranks = ranks[:, None].expand(-1, len(step.labels))
        return ranks if step.present is None else ranks.masked_fill(~step.present[:, 1:].T, EXCLUDED)

    @property
    def comparable(self) -> bool:
        """Once the bank is full: with fewer negatives the loss is lower."""
        return len(self.bank) == self.recipe.bank.size

    def validate(self, encoder: nn.Module, steps: Iterable[Step]) -> float:
        """Mean loss against own keys and the bank as it is, with the statistics of training."""
        total = torch.zeros(2, dtype=torch.float64, device=self.runtime.device)
        encoder.eval(), self.twin.eval()
        with torch.no_grad():
            for step in steps:
                query_view, *key_views = step.views
                with self.runtime.autocast():
                    now = contrast(
                        encoder,
                        self.twin,
                        self.bank,
                        self.parts.rank_source,
                        query_view,
                        key_views,
                        step.labels,
                        own_ranks=self._own_ranks(step),
                    )
                output = self.loss.from_embeddings(now.queries, now.candidates, now.ranks)
                total += torch.stack([output.total.double() * len(step.labels), torch.tensor(float(len(step.labels)))])
        encoder.train(), self.twin.train()
        loss, samples = self.runtime.total(total).tolist()
        return float(loss / samples)


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
