"""Files of vectors of any size: embedded and written part by part, and gone on with where an interruption left them.

While a file is made, its parts lie in a folder beside it, each whole; the last step puts them together and takes the
folder away. Parts are used again only if the same weights would make them of the same samples.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rince.errors import ConfigError, DataError, WriteError
from rince.evaluation.embedded_file import VECTOR
from rince.evaluation.lookup import Which, vectors_of, vectors_table
from rince.evaluation.shares import ALONE, Processes
from rince.evaluation.trained import TrainedRun, made_of
from rince.evaluation.vectors import unit_vectors
from rince.files import check_place, fingerprint_of, unwritten, write_whole, written_whole
from rince.sources.part import Part
from rince.sources.source import Source
from rince.terminal import Say, TellDone, nobody

PARTS = ".parts"  # ending of the folder of parts
SIZE = 2**13  # samples of a part, and of a row group
TEXT = "text"


@dataclass(frozen=True)
class Parts:
    """Parts of a file, all of them there.

    Attributes:
        out: the file that they will be.
        files: of the parts, in order.
        say: is told if they cannot be taken away in the end.
    """

    out: Path
    files: tuple[Path, ...]
    say: Say = nobody

    def vectors(self) -> Iterator[Tensor]:
        """Part by part."""
        from rince.sources.sealed_tables import whole_table  # noqa: PLC0415 - brings pyarrow

        for file in self.files:
            yield as_matrix(whole_table(file, [VECTOR]).column(0).combine_chunks())

    def join(self, metadata: dict[bytes, bytes] | None = None) -> None:
        """Writes the file, whole or not at all, and takes the parts away."""
        from rince.sources.sealed_tables import whole_table, write_sealed  # noqa: PLC0415 - brings pyarrow

        schema = whole_table(self.files[0]).schema.with_metadata(metadata)
        parts = (whole_table(file).replace_schema_metadata(metadata) for file in self.files)
        try:
            with written_whole(self.out) as file:
                write_sealed(file, parts, schema)
        except WriteError as error:
            raise ConfigError(f"{error}; choose another place") from None
        folder = self.files[0].parent
        try:
            shutil.rmtree(folder)
        except OSError as error:  # the file is there, and whole
            self.say(f"{folder} could not be taken away ({error.strerror or error}); it is not needed any more")


def embed_in_parts(
    run: TrainedRun,
    source: Source,
    which: Which,
    out: Path,
    levels: dict[str, list[str]],
    *,
    for_index: bool = False,
    processes: Processes = ALONE,
    tell: TellDone | None = None,
    say: Say = nobody,
) -> Parts:
    """Embeds samples part by part, each written before the next is begun; those that are there are left as they are.

    Args:
        run: that embeds.
        source: of the samples.
        which: features or embeddings.
        out: the file that is made.
        levels: the groups of every class, as `vectors_table` takes them.
        for_index: vectors of unit length, and texts beside them.
        processes: that each make a share; all have all parts in the end.
        tell: is told how many samples are done.
        say: is told if it goes on with what was there.
    """
    check_place(out, in_new_folder=True)
    made_from = fingerprint_of(made=made_of(run, source.fingerprint), which=which, index=for_index, levels=levels)
    folder = out.with_name(out.name + PARTS)
    blocks = torch.arange(len(source)).split(SIZE)
    files = tuple(folder / f"{made_from[:24]}-{number:06}.parquet" for number in range(len(blocks)))
    known = files if source.knows_content else ()  # else nobody knows whether these samples are those of before
    try:
        if processes.is_first:
            there = {file for file in known if file.is_file() and _is_whole(file, say)}
            _clear(folder, there)
            if there:
                say(f"goes on with {out}: {min(len(there) * SIZE, len(source)):,} of {len(source):,} are there")
        processes.meet()
        source.make(processes.number, processes.count)
        processes.meet()
        for file, rows in processes.share(list(zip(files, blocks, strict=True))):
            if not file.is_file():
                told = None if tell is None else partial(_told, tell, int(rows[0]), len(source))
                write_whole(file, _part(run, Part(source, rows), which, levels, for_index=for_index, tell=told))
    except OSError as error:
        raise ConfigError(f"{unwritten(out, error)}; choose another place") from None
    except WriteError as error:
        raise ConfigError(f"{error}; make room and give the same command again: it goes on from there") from None
    finally:
        if processes.is_first and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()  # nothing was made
    processes.meet()
    return Parts(out, files, say)


def _is_whole(part: Path, say: Say) -> bool:
    """Whether a part of before is as it was written."""
    from rince.sources.sealed_tables import whole_table  # noqa: PLC0415 - brings pyarrow

    try:
        whole_table(part)
    except DataError as error:
        say(f"{error}; this part is made again")
        return False
    return True


def _clear(folder: Path, files: set[Path]) -> None:
    """A folder with nothing in it but these files; others are damaged, or of other weights or samples."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in set(folder.iterdir()) - files:
        old.unlink()


def _told(tell: TellDone, before: int, number: int, done: int, _of: int) -> None:
    tell(before + done, number)


def _part(
    run: TrainedRun,
    part: Source,
    which: Which,
    levels: dict[str, list[str]],
    *,
    for_index: bool,
    tell: TellDone | None,
) -> bytes:
    import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 - only here

    from rince.sources.sealed_tables import write_sealed  # noqa: PLC0415 - brings it

    vectors = vectors_of(run, part, which, tell)
    table = vectors_table(part, unit_vectors(vectors, which) if for_index else vectors, levels)
    if for_index and part.text(0) is not None:
        table = table.append_column(TEXT, pa.array([part.text(row) for row in range(len(part))]))
    written = io.BytesIO()
    write_sealed(written, [table], table.schema)
    return written.getvalue()


def as_matrix(column: Any) -> Tensor:
    """`(rows, dim)` from a column of vectors of pyarrow."""
    return torch.tensor(column.flatten().to_numpy()).view(-1, column.type.list_size)
