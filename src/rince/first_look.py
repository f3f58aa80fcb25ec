"""What a loss says of its first call, and of that alone: a look at values costs time, and on an accelerator a wait."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from types import CodeType

import torch
from torch import Tensor

from rince.blockwise import RankRows
from rince.ranks import EXCLUDED

FAR_FROM_ONE = 0.02  # half precision leaves a unit vector within half of that
ROWS = 64  # of ranks that are made block by block: a diagonal is excluded or not, as a whole
OURS = tuple(f"{Path(file).parent}/" for file in (__file__, torch.__file__))  # whose frames are no caller's
PAIRS = 4096  # of rows with the same first number, that are compared whole


class FirstLook:
    """Warns of inputs that give a loss without an error, and a wrong one. Called once; later calls are not due.

    Args:
        done: whether nobody has to look: where the vectors are known to be right.
    """

    def __init__(self, *, done: bool = False) -> None:
        self._done = done

    def is_due(self) -> bool:
        """Whether nobody has looked yet; never while a graph is compiled, which a look would break."""
        return not self._done and not torch.compiler.is_compiling()

    def __call__(self, queries: Tensor, candidates: Tensor, rank_rows: RankRows, *, normalize: bool) -> None:
        """Looks at `(queries, dim)` and `(candidates, dim)` embeddings and rows of their ranks."""
        self._done = True
        same = queries is candidates or torch.equal(queries, candidates)
        given = {"queries": queries} if same else {"queries": queries, "candidates": candidates}
        far = {name: number for name, each in given.items() if not normalize and (number := _far_from_one(each))}
        if far:
            many = " and ".join(f"{number:,} of {len(given[name]):,} {name}" for name, number in far.items())
            called, _ = _caller()
            takes = "normalize" in called.co_varnames
            write = f"{_name(called)}(…, normalize=True)" if takes else "F.normalize(embeddings, dim=-1) before"
            _warn(
                f"{many} are not of unit length, so similarities are no cosines and temperatures mean something else; "
                f"write {write}"
            )
        if same and len(queries) and _own_candidates(len(queries), rank_rows):
            _warn(
                "candidates are the queries themselves, and the diagonal of ranks is not excluded: every sample is "
                "compared with itself; write ranks.fill_diagonal_(rince.EXCLUDED) first"
            )
        elif found := _own_rows(queries, candidates, rank_rows):
            row, column = found
            _warn(
                f"candidates hold the queries themselves: query {row} is candidate {column}, of rank "
                f"{int(rank_rows(row, row + 1)[0, column])}, so samples are compared with themselves; write "
                "rince.EXCLUDED into ranks where a candidate is the query"
            )


def _far_from_one(vectors: Tensor) -> int:
    """How many vectors have another length than 1. Zeros, as in a bank at its start, have no direction."""
    lengths = torch.linalg.vector_norm(vectors.detach(), dim=1)
    return int((((lengths - 1).abs() > FAR_FROM_ONE) & (lengths > 0) & lengths.isfinite()).sum())


def _own_candidates(number: int, rank_rows: RankRows) -> bool:
    return bool((rank_rows(0, min(ROWS, number)).diagonal() != EXCLUDED).any())


def _own_rows(queries: Tensor, candidates: Tensor, rank_rows: RankRows) -> tuple[int, int] | None:
    """The first query and where it stands among the candidates, if the first ones all do and none is excluded there.

    All, since some samples may have copies; and not where one is excluded: whoever did that has thought of it.
    """
    some, others = queries.detach()[:ROWS], candidates.detach()
    if not some.numel() or not others.numel():
        return None
    rows, columns = (some[:, :1] == others[:, 0]).nonzero()[:PAIRS].unbind(1)
    same = (some[rows] == others[columns]).all(dim=1) & (some[rows] != 0).any(dim=1)  # zeros are nobody
    rows, columns = rows[same], columns[same]
    ranks = rank_rows(0, len(some)).to(some.device)[rows, columns]
    if len(rows.unique()) < len(some) or bool((ranks == EXCLUDED).any()):
        return None
    return int(rows[0]), int(columns[0])


def _caller() -> tuple[CodeType, int]:
    """The function of ours that somebody called, and how many frames that is up from here."""
    frame, level = sys._getframe(), 0
    called = frame.f_code
    while frame.f_back is not None and frame.f_back.f_code.co_filename.startswith(OURS):
        frame, level = frame.f_back, level + 1
        called = frame.f_code if frame.f_code.co_filename.startswith(OURS[0]) else called  # torch calls modules for you
    return called, level


def _name(called: CodeType) -> str:
    return called.co_qualname.rpartition("<locals>.")[2]


def _warn(text: str) -> None:
    called, level = _caller()
    warnings.warn(f"{_name(called)}: {text}", stacklevel=level + 1)
