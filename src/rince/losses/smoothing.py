"""Label smoothing inside the superclass: the target is 1 - α for the class, and α spread evenly over its siblings."""

from __future__ import annotations

import torch
from torch import Tensor


def sibling_targets(superclass_of: Tensor, smoothing: float) -> Tensor:
    """`(classes, classes)`: row c is what the classifier should say of a sample of class c.

    Args:
        superclass_of: `(classes,)`.
        smoothing: α, the mass that the siblings of a class share.

    Example:
        >>> sibling_targets(torch.tensor([0, 0, 0, 1]), 0.2)
        tensor([[0.8000, 0.1000, 0.1000, 0.0000],
                [0.1000, 0.8000, 0.1000, 0.0000],
                [0.1000, 0.1000, 0.8000, 0.0000],
                [0.0000, 0.0000, 0.0000, 1.0000]])
    """
    own = torch.eye(len(superclass_of))
    siblings = (superclass_of[:, None] == superclass_of).float() - own
    number = siblings.sum(dim=1, keepdim=True)
    mass = smoothing * (number > 0)
    return own * (1 - mass) + siblings * mass / number.clamp(min=1)
