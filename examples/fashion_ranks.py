"""Trains a small encoder on the embedded part of Fashion-MNIST twice: told classes only, and told three ranks.

    make demo          about a minute on two cores

Both see the same images, views, order and encoder; only the rank matrix and its terms differ. SCL knows "same class"
and "different". RINCE also knows that a shirt is closer to a T-shirt than to a coat, and to a coat than to a boot.
What to look for: class retrieval stays where it is, and the hierarchy appears in the embedding.
"""

import argparse
import io
import sys
import time
from importlib.resources import files

import numpy as np
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

import rince
from rince.moco import contrast

# The path of every class, from department to group to class, in the order of the labels.
TAXONOMY = [
    ("clothing", "tops", "T-shirt/top"),
    ("clothing", "full length", "Trouser"),
    ("clothing", "outerwear", "Pullover"),
    ("clothing", "full length", "Dress"),
    ("clothing", "outerwear", "Coat"),
    ("accessories", "footwear", "Sandal"),
    ("clothing", "tops", "Shirt"),
    ("accessories", "footwear", "Sneaker"),
    ("accessories", "bags", "Bag"),
    ("accessories", "footwear", "Ankle boot"),
]
BATCH, BANK, DIM = 256, 2048, 64


def load(split: str) -> tuple[Tensor, Tensor]:
    """Images `(number, 1, 28, 28)` in [0, 1], and labels."""
    path = files("rince") / f"data/embedded/fashion/{split}-00000-of-00001.parquet"
    table = pq.read_table(str(path))
    images = np.stack([np.array(Image.open(io.BytesIO(row["bytes"]))) for row in table["image"].to_pylist()])
    return torch.from_numpy(images).float().div(255)[:, None], torch.tensor(table["label"].to_pylist())


class Encoder(nn.Module):
    """Three convolutions, a head of two layers, unit length. `features` is what comes before the head."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((1, width), (width, 2 * width), (2 * width, 4 * width)):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(4 * width, 4 * width), nn.ReLU(), nn.Linear(4 * width, DIM))

    def forward(self, images: Tensor) -> Tensor:
        return F.normalize(self.head(self.features(images)), dim=1)


def view(images: Tensor) -> Tensor:
    """Every image shifted by up to three pixels, scaled by up to a fifth, and mirrored half of the time."""
    number = len(images)
    scale = 1 + 0.2 * (2 * torch.rand(number) - 1)
    flip = torch.where(torch.rand(number) < 0.5, -1.0, 1.0)
    shift = (2 * torch.rand(number, 2) - 1) * 3 / 14
    transform = torch.zeros(number, 2, 3)
    transform[:, 0, 0], transform[:, 1, 1], transform[:, :, 2] = scale * flip, scale, shift
    return F.grid_sample(images, F.affine_grid(transform, list(images.shape), align_corners=False), align_corners=False)


def train(images: Tensor, labels: Tensor, ranks: rince.TableRanks, loss: rince.RankedInfoNCE, epochs: int) -> Encoder:
    torch.manual_seed(0)
    encoder = Encoder()
    twin = rince.MomentumTwin(encoder, momentum=0.99)
    bank = rince.MemoryBank(BANK, DIM)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.3, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * (len(images) // BATCH))
    start = time.perf_counter()
    for epoch in range(epochs):
        for chosen in torch.randperm(len(images)).split(BATCH)[: len(images) // BATCH]:
            step = contrast(encoder, twin, bank, ranks, view(images[chosen]), [view(images[chosen])], labels[chosen])
            output = loss.from_embeddings(step.queries, step.candidates, step.ranks)
            bank.push(step.keys[0], labels[chosen])
            twin.update(encoder)
            optimizer.zero_grad()
            output.total.backward()
            optimizer.step()
            schedule.step()
        terms = "  ".join(f"ℓ{i} {value:.3f}" for i, value in enumerate(output.per_rank.tolist(), start=1))
        last = epoch + 1 == epochs
        if sys.stdout.isatty() or last or epoch % 5 == 4:
            end = "\r" if sys.stdout.isatty() and not last else "\n"
            print(f"  epoch {epoch + 1:2}/{epochs}  {terms}  {time.perf_counter() - start:4.0f} s", end=end, flush=True)
    return encoder.eval()


@torch.no_grad()
def judge(encoder: Encoder, train_set: tuple[Tensor, Tensor], test_set: tuple[Tensor, Tensor]) -> dict[str, float]:
    """R@1 of the class on features before the head; mean similarity per rank, and how ordered it is, after it."""
    (gallery, gallery_labels), (queries, query_labels) = train_set, test_set
    before = [F.normalize(encoder.features(images), dim=1) for images in (queries, gallery)]
    nearest = (before[0] @ before[1].T).argmax(dim=1)
    similarities = encoder(queries) @ encoder(gallery).T
    ranks = rince.TableRanks.from_tree(TAXONOMY)(query_labels, gallery_labels)
    by_rank = {rank: similarities[ranks == rank].mean().item() for rank in (1, 2, 3, 0)}
    return {
        "R@1 of the class, %": 100 * (gallery_labels[nearest] == query_labels).double().mean().item(),
        "mean similarity, same class": by_rank[1],
        "mean similarity, same group": by_rank[2],
        "mean similarity, same department": by_rank[3],
        "mean similarity, the rest": by_rank[0],
        "mAP of the group": mean_average_precision(similarities, (ranks == 1) | (ranks == 2)),
        "mAP of the department": mean_average_precision(similarities, ranks > 0),
    }


def mean_average_precision(similarities: Tensor, relevant: Tensor) -> float:
    """Mean over queries of the precision at every relevant candidate, nearest first."""
    hits = relevant.gather(1, similarities.argsort(dim=1, descending=True)).double()
    precision = hits.cumsum(dim=1) / torch.arange(1, hits.shape[1] + 1)
    return ((precision * hits).sum(dim=1) / hits.sum(dim=1)).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--images", type=int, default=6000, help="how many of the training images to use")
    options = parser.parse_args()
    train_set, test_set = load("train"), load("test")
    train_set = (train_set[0][: options.images], train_set[1][: options.images])
    tree = rince.TableRanks.from_tree(TAXONOMY)
    methods = {
        "SCL-in": (rince.TableRanks((tree.table == 1).to(torch.int8)), rince.RankedInfoNCE.in_((0.1,))),
        "RINCE-in": (tree, rince.RankedInfoNCE.in_(rince.linear_temperatures(0.1, 0.6, tree.ranks))),
    }
    results = {}
    for name, (ranks, loss) in methods.items():
        print(f"{name}: {ranks.ranks} rank(s), {len(train_set[0])} images, bank of {BANK}")
        results[name] = judge(train(*train_set, ranks, loss, options.epochs), train_set, test_set)
    print(f"\n{'on 2,000 test images':34}" + "".join(f"{name:>10}" for name in results))
    for metric in results["SCL-in"]:
        print(f"{metric:34}" + "".join(f"{results[name][metric]:10.3f}" for name in results))


if __name__ == "__main__":
    main()
