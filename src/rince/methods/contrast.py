"""Momentum contrast: the paper's method, and every row of its tables that differs in ranks and terms only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from rince.bank import MemoryBank
from rince.config import Recipe
from rince.errors import DataError
from rince.loss import LossOutput, RankedLoss
from rince.methods.method import Given, Machine, Method, MethodKind, Outcome, build_loss
from rince.methods.summary import WATCHED, own_key_summary, similarity_summary
from rince.moco import ContrastStep, compare, own_and_bank_ranks
from rince.momentum import MomentumTwin, as_it_was
from rince.ranks import EXCLUDED
from rince.sources.feed import Step
from rince.sources.order import permutation
from rince.sources.source import Batch, parts_of, rows_of


class Momentum(Method):
    """What methods with a twin and a bank have in common."""

    def __init__(self, recipe: Recipe, given: Given) -> None:
        super().__init__(recipe, given)
        assert recipe.twin is not None  # the recipe was checked
        assert recipe.bank is not None
        device = given.runtime.device
        self.twin = MomentumTwin(given.encoder, recipe.twin.momentum, buffers=recipe.twin.buffers).to(device)
        bank = MemoryBank(recipe.bank.size, given.encoder.dim, start=recipe.bank.start, seed=recipe.seed)
        self.bank = bank.to(device)
        if recipe.model.compile:
            self.twin.module.compile()

    def modules(self) -> dict[str, nn.Module]:
        """Twin and bank."""
        return {"twin": self.twin, "bank": self.bank}

    @property
    def comparable(self) -> bool:
        """Once the bank is full: with fewer negatives the loss is lower."""
        return len(self.bank) == len(self.bank.keys)

    def key_maker(self, step: Step) -> MomentumTwin | _ShuffledTwin:
        """The twin, or the twin on another split of the batch."""
        shuffled = self.recipe.train.batch_norm == "shuffled" and self.runtime.processes > 1
        return _ShuffledTwin(self.twin, self.runtime, step) if shuffled else self.twin

    def remember(self, keys: list[Tensor], labels: Tensor, step: Step) -> None:
        """After the loss: the keys of all processes into the bank, then the twin follows."""
        gather = self.runtime.gather
        self.bank.push(gather(torch.cat(keys).float(), step.sizes), gather(labels, step.sizes))
        self.twin.update(self.raw)


class MomentumContrast(Momentum):
    """Queries from the encoder against keys from its twin: own keys and bank."""

    def __init__(self, recipe: Recipe, given: Given) -> None:
        super().__init__(recipe, given)
        self.loss = self.make_loss(recipe)
        # A recipe may have more terms than the taxonomy has ranks; the last rank there is meets the negatives.
        self.rank_count = min(self.loss.rank_count, given.rank_count)
        own_ranks = [rank for rank in recipe.own_ranks if rank != EXCLUDED]
        self.own_ranks = torch.tensor(own_ranks, dtype=torch.int8, device=given.runtime.device)

    def make_loss(self, recipe: Recipe) -> RankedLoss:
        """The ranked loss that is trained."""
        return build_loss(recipe, self.given.rank_count)

    def step(self, encoder: nn.Module, step: Step, *, logged: bool) -> Outcome:
        """One step of the paper: contrast with the bank as it is, push the keys, move the twin."""
        runtime, labels = self.runtime, self.rank_labels(step)
        own_ranks = self._own_ranks(step)
        bank_ranks = self.rank_source(labels, self.bank.labels)
        counted = self.loss.count(torch.cat([own_ranks.T, bank_ranks], dim=1))
        # DDP averages gradients over processes; with this divisor that is the gradient of the whole batch's loss.
        divisor = runtime.total(counted.float()) / runtime.processes
        make_keys = self.key_maker(step)
        outputs, keys, seen, summary = [], [], [], None
        parts = parts_of(len(labels), self.recipe.train.accumulate)
        used = 1 + len(self.own_ranks)
        for number, part in enumerate(parts, start=1):
            with runtime.no_sync(encoder, enabled=number < len(parts)):
                with runtime.autocast():
                    query_view, *key_views = (rows_of(view, part) for view in step.views[:used])
                    ranks = own_and_bank_ranks(own_ranks[:, part], bank_ranks[part])
                    now = compare(encoder, make_keys, self.bank, ranks, query_view, key_views)
                try:
                    output = self.loss.from_embeddings(now.queries, now.candidates, now.ranks, divisor=divisor)
                except DataError as error:
                    raise DataError(f"step {step.step}: {error}") from None
                runtime.backward(output.total)
            outputs.append(output)
            keys.append(now.keys[0])
            seen += [now._replace(queries=now.queries.detach())] if logged else []
            if logged and summary is None:
                some = now.queries[:WATCHED].detach() @ now.candidates.T
                summary = similarity_summary(some, now.ranks[:WATCHED], self.rank_count)
                summary |= self._watched(now, step, part, make_keys)
        self.remember(keys, labels, step)
        explain = (lambda: why_not_finite(self.loss, outputs, seen)) if logged else None
        return Outcome(log_values(outputs, runtime), summary, explain)

    def _watched(
        self, now: ContrastStep, step: Step, part: slice, make_keys: Callable[[Batch], Tensor]
    ) -> dict[str, float]:
        """How similar each kind of own key is, also those that take no part, whose views come with some steps."""
        names = self.recipe.ranks.own_names if self.recipe.ranks else ()
        if not names:
            return {}
        used = self.recipe.view_numbers
        further = dict(zip(self.recipe.watched_numbers, step.views[len(used) :], strict=False))
        with as_it_was(self.twin), self.runtime.autocast():
            keys = [*now.keys, *(make_keys(rows_of(view, part)) for view in further.values())]
        found = {}
        for column, (number, key) in enumerate(zip((*used[1:], *further), keys, strict=True), start=1):
            similarity = (now.queries.detach() * key).sum(dim=1).float()
            there = None if step.present is None else step.present[part, column]
            found[number] = similarity if there is None else similarity.masked_fill(~there, torch.nan)
        return own_key_summary({names[number - 1]: found[number] for number in sorted(found)})

    def _own_ranks(self, step: Step) -> Tensor:
        """`(key views, samples)`: what a sample's own keys are to it; -1 where it lacks the view, as short videos."""
        ranks = self.own_ranks[:, None].expand(-1, len(step.ids))
        return (
            ranks
            if step.present is None
            else ranks.masked_fill(~step.present[:, 1 : 1 + len(self.own_ranks)].T, EXCLUDED)
        )

    def validate(self, encoder: nn.Module, steps: Iterable[Step]) -> float:
        """Mean loss against own keys and the bank as it is, with the statistics of training."""
        loss, samples = 0.0, 0
        encoder.eval(), self.twin.eval()
        with torch.no_grad():
            for step in steps:
                query_view, *key_views = step.views
                bank_ranks = self.rank_source(self.rank_labels(step), self.bank.labels)
                ranks = own_and_bank_ranks(self._own_ranks(step), bank_ranks)
                with self.runtime.autocast():
                    now = compare(encoder, self.twin, self.bank, ranks, query_view, key_views)
                output = self.loss.from_embeddings(now.queries, now.candidates, now.ranks)
                loss, samples = loss + float(output.total) * len(step.ids), samples + len(step.ids)
        encoder.train(), self.twin.train()
        loss, number = self.runtime.totals([loss, samples])
        return loss / number


class ContrastSettings(MethodKind):
    """`method.kind=contrast`: momentum contrast with the ranked loss: RINCE, SCL, InfoNCE."""

    uses: ClassVar[frozenset[str]] = frozenset({"loss", "bank", "twin", "ranks"})
    validates: ClassVar[bool] = True
    method: ClassVar[type[Method]] = MomentumContrast

    kind: Literal["contrast"] = "contrast"


def log_values(outputs: list[LossOutput], runtime: Machine) -> dict[str, Tensor]:
    """Loss and terms of all parts and processes."""
    per_rank = runtime.total(torch.stack([output.per_rank for output in outputs]).sum(dim=0)) / runtime.processes
    used = runtime.total(torch.stack([output.queries_used for output in outputs]).sum(dim=0))
    total = runtime.total(torch.stack([output.total.detach() for output in outputs]).sum()) / runtime.processes
    return named_values(LossOutput(total, per_rank, used))


def named_values(output: LossOutput) -> dict[str, Tensor]:
    """Loss and terms under the names of the log."""
    values = {"loss": output.total.detach()}
    for rank, (value, queries) in enumerate(zip(output.per_rank, output.queries_used, strict=True), start=1):
        values |= {f"term/{rank}": value, f"queries/{rank}": queries}
    return values


def why_not_finite(loss: RankedLoss, outputs: list[LossOutput], seen: list[ContrastStep]) -> DataError:
    """What is wrong with the first part of a step whose loss is not finite."""
    number = next((i for i, output in enumerate(outputs) if not output.total.isfinite()), 0)
    part = seen[number]
    return loss.explain(part.ranks, queries=part.queries, candidates=part.candidates)


class _ShuffledTwin:
    """Keys made in another split of the batch, so that batch statistics do not tell a query which key is its own."""

    def __init__(self, twin: MomentumTwin, runtime: Machine, step: Step) -> None:
        self.twin, self.runtime, self.step = twin, runtime, step

    def __call__(self, view: Batch) -> Tensor:
        if isinstance(view, dict):
            raise DataError("train.batch_norm=shuffled shuffles tensors, and a batch of this source is a dict of them")
        sizes, process = self.step.sizes, self.runtime.process
        whole = self.runtime.gather(view, sizes)
        shuffle = permutation(len(whole), self.step.step, 0).to(whole.device)
        start = sum(sizes[:process])
        own = slice(start, start + sizes[process])
        keys = self.twin(whole[shuffle][own])
        back = torch.empty_like(shuffle)
        back[shuffle] = torch.arange(len(whole), device=whole.device)
        return self.runtime.gather(keys, sizes)[back][own]
