"""SCL with two heads: (1 - λ) L_fine + λ L_superclass, each with a projection head and keys of its own.

The two embeddings of a sample stand side by side in one vector, each of unit length, so that one twin and one bank
serve both; the bank's class labels give the superclass as well.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rince.bank import MemoryBank
from rince.config import ContrastTwoHeadsMethod, Recipe
from rince.moco import contrast_ranks
from rince.encoders.encoder import Encoder
from rince.momentum import MomentumTwin
from rince.ranks import TableRanks
from rince.sources.feed import Step
from rince.methods.method import Method, Outcome, mean_over_processes
from rince.train.runtime import Runtime
from rince.train.setup import Parts, build_loss


class ContrastTwoHeads(Method):
    """Momentum contrast on classes with one head, and on superclasses with the other."""

    def __init__(self, recipe: Recipe, parts: Parts, encoder: Encoder, runtime: Runtime) -> None:
        super().__init__(recipe, parts, encoder, runtime)
        assert isinstance(recipe.method, ContrastTwoHeadsMethod)
        self.weights = (1 - recipe.method.superclass_weight, recipe.method.superclass_weight)
        self.sources = [TableRanks((group[:, None] == group).to(torch.int8)) for group in parts.groups[:2]]
        self.loss = build_loss(recipe)
        self.twin = MomentumTwin(encoder, recipe.twin.momentum, buffers=recipe.twin.buffers).to(runtime.device)
        self.bank = MemoryBank(recipe.bank.size, encoder.dim, start=recipe.bank.start, seed=recipe.seed).to(
            runtime.device
        )

    def modules(self) -> dict[str, nn.Module]:
        """Twin and bank."""
        return {"twin": self.twin, "bank": self.bank}

    def step(self, encoder: nn.Module, step: Step, *, logged: bool) -> Outcome:
        """Gradients of both losses; then the keys are pushed and the twin moves, as in momentum contrast."""
        query_view, key_view = step.views
        parts = torch.arange(len(step.labels)).tensor_split(self.recipe.train.accumulate)
        keys: list[Tensor] = []
        terms = torch.zeros(2, device=step.labels.device)
        for number, part in enumerate(parts, start=1):
            with self.runtime.no_sync(encoder, enabled=number < len(parts)):
                with self.runtime.autocast():
                    queries, own = (_halves(each) for each in (encoder(query_view[part]), self.twin(key_view[part])))
                banked = self.bank.keys.chunk(2, dim=1)
                # Every query has its own key as a positive, so the mean over the whole batch divides by its size.
                divisor = torch.tensor([sum(step.sizes) / self.runtime.processes], device=step.labels.device)
                losses = [
                    self.loss.from_embeddings(
                        queries[head],
                        torch.cat([own[head], banked[head]]),
                        contrast_ranks(step.labels[part], self.bank, source),
                        divisor=divisor,
                    ).total
                    for head, source in enumerate(self.sources)
                ]
                self.runtime.backward(self.weights[0] * losses[0] + self.weights[1] * losses[1])
            terms += torch.stack([loss.detach() for loss in losses])
            keys.append(torch.cat(own, dim=1))
        pushed = self.runtime.gather(torch.cat(keys).float(), step.sizes)
        self.bank.push(pushed, self.runtime.gather(step.labels, step.sizes))
        self.twin.update(self.raw)
        fine, coarse = (mean_over_processes(term, self.runtime) for term in terms)
        loss = self.weights[0] * fine + self.weights[1] * coarse
        return Outcome({"loss": loss, "term/fine": fine, "term/superclass": coarse}, {} if logged else None)


def _halves(both: Tensor) -> tuple[Tensor, ...]:
    """The embeddings of the two heads, each of unit length."""
    return tuple(F.normalize(half, dim=1) for half in both.chunk(2, dim=1))
