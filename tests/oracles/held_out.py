"""Which samples are held out, by a plain loop."""

import hashlib
import math


def held_out_by_name(names, labels, share, salt=""):
    """Rows of the smallest sha256 of every class, rising; at least one of two or more, and at least one stays."""
    classes = {}
    for row, (name, label) in enumerate(zip(names, labels, strict=True)):
        classes.setdefault(label, []).append((hashlib.sha256((salt + name).encode()).hexdigest(), row))
    chosen = []
    for members in classes.values():
        number = min(len(members) - 1, max(1, math.floor(share * len(members) + 0.5)))
        chosen += [row for _, row in sorted(members)[:number]]
    return sorted(chosen)
