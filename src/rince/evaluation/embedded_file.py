"""What `rince embed` wrote, read again: vectors that a run has made already, taken as they are."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Literal

from rince.errors import DataError
from rince.evaluation.trained import TrainedRun
from rince.sources.image_files import SUFFIXES as IMAGES
from rince.sources.image_files import find_images
from rince.sources.source import Preview
from rince.sources.vector_files import Part, open_vector_file
from rince.sources.vector_levels import read_classes
from rince.sources.vectors import Vectors, labelled_vectors

PATH, VECTOR, LABEL = "path", "vector", "label"  # columns of a file of vectors


class EmbeddedVectors(Vectors):
    """Vectors of samples that a run has embedded, with what the file says of these."""

    def own_paths(self, taxonomy: str) -> list[tuple[str, ...]]:  # noqa: ARG002 - of the interface
        """By the levels in the file, wherever the run had its own from."""
        return super().own_paths("column")

    def file(self, row: int) -> Path | None:
        """The file of the sample, where it still is, so that a query does not find itself."""
        place = None if self.called is None else self.called[row].as_py()
        return Path(place) if place and os.path.isfile(place) else None

    def preview(self, row: int) -> Preview:
        """The image that it was made of, where that still is; else what there is of any vector."""
        file = self.file(row)
        if file is not None and file.suffix.lower() in IMAGES:
            with suppress(DataError):  # it may have been damaged since
                return find_images(str(file)).preview(0)
        return super().preview(row)


def find_embedded(run: TrainedRun, place: object, which: Literal["features", "embeddings"]) -> EmbeddedVectors | None:
    """The vectors in a file that `rince embed` wrote; None if it is no such file.

    Of a run on vectors, a file of vectors of the length that it was trained on holds samples.

    Args:
        run: that made them.
        place: what a person named.
        which: of what they are.
    """
    import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 - only here
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415

    if not isinstance(place, str | Path) or Path(place).suffix != ".parquet" or not os.path.isfile(place):
        return None
    try:
        columns = pq.read_schema(place).names
    except (OSError, pa.ArrowException):
        return None  # whoever opens it as something else says what is wrong
    if not {PATH, VECTOR} <= set(columns):
        return None
    file = open_vector_file(Path(place), VECTOR)
    width = run.encoder.feature_dim if which == "features" else run.encoder.dim
    if file.matrix.width == run.shape[0] and len(run.shape) == 1:
        return None
    if file.matrix.width != width:
        raise DataError(
            f"{place} holds vectors of the length {file.matrix.width}, and the {which} of {run.folder} have {width}; "
            "embed the samples with this run, or say --which as they were embedded"
        )
    classes = read_classes([file]) if LABEL in columns else None
    found = labelled_vectors(str(place), [Part(file)], classes, [file])
    return EmbeddedVectors(**{field.name: getattr(found, field.name) for field in fields(found)})
