"""Ranks from your own taxonomy, and from similarities of class names."""

import torch

import rince

# A tree of any depth: the further up the common ancestor, the higher the rank.
paths = ["animal/dog/poodle", "animal/dog/pug", "animal/cat/manx", "plant/tree/oak"]
tree = rince.TableRanks.from_tree(paths)
print(tree)
for path, row in zip(paths, tree.table.tolist(), strict=True):
    print(f"{path:18} {row}")

# Similarities, from a text model for example: same class, then everybody at or above each threshold.
similarity = torch.tensor([[1.0, 0.7, 0.5, 0.1], [0.7, 1.0, 0.4, 0.2], [0.5, 0.4, 1.0, 0.1], [0.1, 0.2, 0.1, 1.0]])
noisy = rince.TableRanks.from_similarity(similarity, thresholds=(0.6, 0.45))
print(noisy)
print(noisy.table.tolist())

# One term per rank. Temperatures grow with the rank.
temperatures = rince.linear_temperatures(0.1, 0.3, ranks=tree.ranks)
print(rince.RankedInfoNCE.in_(temperatures))

# The matrix the loss takes: queries of class 0 and 3 against a bank with an unfilled slot (label -1).
print(tree(torch.tensor([0, 3]), torch.tensor([0, 1, 2, 3, -1])).tolist())
