"""Momentum contrast with a labelled bank, in one screen: 20 classes in 5 superclasses, made up on the spot."""

import torch
import torch.nn.functional as F
from torch import nn

import rince
from rince.moco import contrast

CLASSES, SUPERCLASSES, WIDTH = 20, 5, 64


class Encoder(nn.Module):
    """Two layers, then unit length."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.layers(x), dim=1)


torch.manual_seed(0)
superclass_of = torch.arange(CLASSES) % SUPERCLASSES
centres = 0.7 * torch.randn(SUPERCLASSES, WIDTH)[superclass_of] + 0.7 * torch.randn(CLASSES, WIDTH)


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two noisy views of the same samples, and their classes."""
    labels = torch.randint(0, CLASSES, (number,))
    samples = centres[labels] + torch.randn(number, WIDTH)
    return samples + 0.5 * torch.randn_like(samples), samples + 0.5 * torch.randn_like(samples), labels


encoder = Encoder()
twin = rince.MomentumTwin(encoder, momentum=0.99)
bank = rince.MemoryBank(size=1024, dim=32)
ranks = rince.TableRanks.from_superclasses(superclass_of)
loss = rince.RankedInfoNCE.in_((0.1, 0.225))
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1, momentum=0.9)

for step in range(201):
    query_view, key_view, labels = batch(128)
    now = contrast(encoder, twin, bank, ranks, query_view, [key_view], labels)
    output = loss.from_embeddings(now.queries, now.candidates, now.ranks)
    bank.push(now.keys[0], labels)
    twin.update(encoder)
    optimizer.zero_grad()
    output.total.backward()
    optimizer.step()
    if step % 50 == 0:
        cosines = now.similarities
        by_rank = [f"{cosines[now.ranks == rank].mean():+.2f}" for rank in (1, 2, 0) if (now.ranks == rank).any()]
        print(f"step {step:3}  loss {output.total:.3f}  similarity to rank 1, rank 2, negatives: {'  '.join(by_rank)}")
