"""Methods whose loss is between the samples of one batch, one view of each, without twin and bank."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor, nn

from rince.methods.method import Method, Outcome
from rince.sources.feed import Step


class BatchLoss(Method):
    """All samples of a batch against each other."""

    @abstractmethod
    def loss(self, embeddings: Tensor, classes: Tensor) -> Tensor:
        """Of `(batch, dim)` embeddings of unit length with `(batch,)` classes."""

    def step(self, encoder: nn.Module, step: Step, *, logged: bool) -> Outcome:
        """Gradients of the loss."""
        with self.runtime.autocast():
            embeddings = encoder(step.views[0])
        loss = self.loss(embeddings, step.classes)
        self.runtime.backward(loss)
        return Outcome({"loss": loss.detach()}, {} if logged else None)
