"""What `rince analyse run` found, for a terminal and for a file."""

from __future__ import annotations

import json
import math
from typing import Any

from rince.analysis.measure import RankFinding, RunAnalysis


def analysis_text(found: RunAnalysis) -> str:
    """For a terminal: prediction against measurement in a line per rank, then whom the terms push."""
    lines = [
        f"{found.recipe}: {found.queries:,} queries ({found.split}) against {found.candidates:,} training images",
        *(_rank_line(finding, len(found.ranks)) for finding in found.ranks),
        f"negatives: measured {found.negatives_after:+.3f} (before the head {found.negatives_before:+.3f})",
        *([found.at_rest.text] if found.at_rest else []),
        "",
        "whom each term pushes away, and how much of its push on negatives the closest tenth of them gets:",
    ]
    for number, (shares, tenths) in enumerate(zip(found.pushed.by_rank, found.pushed.by_quantile, strict=True), 1):
        ranks = [f"rank {rank} {float(shares[rank]):.0%}" for rank in range(number + 1, len(shares))]
        whom = ", ".join([*ranks, f"negatives {float(shares[0]):.0%}"])
        lines.append(
            f"  ℓ{number} (τ = {found.ranks[number - 1].temperature:g}): {whom}; closest tenth {float(tenths[-1]):.0%}"
        )
    relations = [
        f"{name} {push:.0%} (of negatives {share:.0%})" for name, (push, share) in found.pushed.by_relation.items()
    ]
    lines.append("push on negatives by what they share with the query: " + ", ".join(relations))
    pairs = [f"{query} → {negative} ×{times:.1f}" for query, negative, times in found.pushed.by_classes]
    lines.append("pushed hardest, against the average negative: " + ", ".join(pairs))
    return "\n".join(lines)


def _rank_line(finding: RankFinding, last: int) -> str:
    further = f"rank {finding.rank + 1}" if finding.rank < last else "negatives"
    violated = "" if finding.violated is None else f"; orders with {further} violated {finding.violated:.1%}"
    head = f"(before the head {finding.before:+.3f})"
    if finding.predicted is None:
        return f"rank {finding.rank}: measured {finding.after:+.3f} {head}, nothing opposes it{violated}"
    return (
        f"rank {finding.rank}: predicted {finding.predicted:+.3f}, measured {finding.after:+.3f}, "
        f"{finding.after - finding.predicted:+.3f} {head}{violated}"
    )


def analysis_json(found: RunAnalysis) -> str:
    """All numbers, as a JSON file."""
    values: dict[str, Any] = {
        "recipe": found.recipe,
        "split": found.split,
        "queries": found.queries,
        "candidates": found.candidates,
        "ranks": [{key: _plain(value) for key, value in vars(finding).items()} for finding in found.ranks],
        "negatives": {"before": _plain(found.negatives_before), "after": _plain(found.negatives_after)},
        "at_rest": found.at_rest and {"holds": found.at_rest.holds, **vars(found.at_rest)},
        "push": {
            "by_rank": found.pushed.by_rank.tolist(),
            "on_negatives_by_tenth": found.pushed.by_quantile.tolist(),
            "on_negatives_by_relation": {
                name: {"push": push, "negatives": share} for name, (push, share) in found.pushed.by_relation.items()
            },
            "on_negatives_by_classes": [
                {"query": query, "negative": negative, "times_average": times}
                for query, negative, times in found.pushed.by_classes
            ],
        },
    }
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    """JSON has no NaN."""
    return None if isinstance(value, float) and math.isnan(value) else value
