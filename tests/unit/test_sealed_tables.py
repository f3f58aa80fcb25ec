"""Parquet that we write: a bit that is not as it was written is noticed, or makes no difference to what is read."""

import io
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rince.errors import DataError
from rince.sources.sealed_tables import opened_table, whole_table, write_sealed
from rince.sources.text_files import read_table
from rince.sources.vector_files import Part, open_vector_file, read_vectors
from unit.test_seals import flipped

NOTES = {b"rince.index": '{"of": "ü"}'.encode()}


def made(rows, seed=0):
    numbers = np.random.default_rng(seed).normal(size=4 * rows).astype(np.float32)
    return pa.table(
        {
            "path": [f"photos/{row}.jpg" for row in range(rows)],
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(numbers), 4),
            "label": ["käfer" if row % 3 else "" for row in range(rows)],
        }
    ).replace_schema_metadata(NOTES)


TABLES = [made(20), made(9, seed=1)]


def content():
    file = io.BytesIO()
    write_sealed(file, TABLES, TABLES[0].schema)
    return file.getvalue()


def vectors_and_labels(path):
    file = open_vector_file(path)
    return read_vectors([Part(file)], str(path)).tolist(), {
        name: file.columns[name].to_pylist() for name in file.columns
    }


def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path):
    path, whole = tmp_path / "made.parquet", content()
    path.write_bytes(whole)
    table, read = pa.concat_tables(TABLES), vectors_and_labels(path)
    assert pq.read_table(path).equals(table)  # anybody's
    assert whole_table(path).schema.metadata.items() > NOTES.items()
    assert read == (table["vector"].to_pylist(), {name: table[name].to_pylist() for name in ("path", "label")})
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    chosen = random.Random(0).sample(range(8 * footer), 250) + random.Random(1).sample(
        range(8 * footer, 8 * len(whole)), 250
    )
    refused = 0
    for bit in chosen:
        path.write_bytes(flipped(whole, bit))
        for reads, meant in ((whole_table, table), (vectors_and_labels, read)):
            try:
                assert reads(path) == meant, bit
            except DataError:
                refused += 1
    assert 700 < refused < 1000  # statistics and page indexes are for others


def test_a_seal_that_is_out_of_place_is_not_none(tmp_path):
    """Damage to the list that it stands in would make a file of ours one of others."""
    whole, path = content(), tmp_path / "made.parquet"
    path.write_bytes(whole)
    with opened_table(path) as (file, _):
        kept = file.metadata.metadata
    assert b"rince.sha256" in kept
    one = pq.ParquetFile(path).read().replace_schema_metadata({"other": "rince.sha256"})
    pq.write_table(one, path)
    with pytest.raises(DataError, match=r"made.parquet is damaged: .* its seal is there but out of place"):
        whole_table(path)


def test_it_is_checked_as_it_is_read_however_that_is_cut(tmp_path):
    path = tmp_path / "made.parquet"
    path.write_bytes(content())
    changed = pa.concat_tables(TABLES)["vector"].combine_chunks()
    numbers = changed.flatten().to_numpy().copy()
    numbers[4 * 22] += 1  # of the second row group
    changed = pa.FixedSizeListArray.from_arrays(pa.array(numbers), 4)
    for size in (1, 7, 20, 29):
        with opened_table(path) as (file, seal):
            column = seal.checked("vector")
            for batch in file.iter_batches(size, columns=["vector"]):
                column.add(batch.column(0))
            column = seal.checked("vector")
            for start in range(0, 28, 4):
                column.add(changed[start : start + 4])
            with pytest.raises(DataError, match="'vector' does not fit its digest"):
                column.add(changed[28:])


def test_text_in_such_a_file_is_checked_too_and_files_of_others_are_read(tmp_path):
    path, table = tmp_path / "made.parquet", made(30)
    pq.write_table(table, path)
    assert whole_table(path).equals(table)
    file = io.BytesIO()
    write_sealed(file, [pa.table({"text": ["käfer", "ulme"]})], pa.schema({"text": pa.string()}))
    whole = file.getvalue()
    place = whole.index("käfer".encode())
    path.write_bytes(whole)
    assert read_table(path).columns == {"text": ["käfer", "ulme"]}
    path.write_bytes(whole[:place] + b"h" + whole[place + 1 :])
    with pytest.raises(DataError, match="is damaged"):
        read_table(path)
