"""Files of vectors of any size: what is in memory does not grow with them."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from rince.errors import DataError
from rince.evaluation.index import open_index
from rince.run import open_run
from rince.sources.vector_files import Part, VectorReader, open_vector_file, read_vectors
from rince.sources.vectors import FiledVectors, VectorData, VectorViewSettings
from train.tiny import rince

WIDTH, BLOCK = 16, 512
RECIPE = {
    "name": "test/vectors",
    "method": {"kind": "frozen"},
    "model": {"kind": "adapter", "hidden": 8},
}


def write(path, rows, labels):
    vectors = np.random.default_rng(rows).normal(size=(rows, WIDTH)).astype(np.float32)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), WIDTH)
    pq.write_table(pa.table({"vector": lists, "label": pa.array(labels, pa.string())}), path, row_group_size=BLOCK)


def test_no_more_than_a_part_is_in_memory(tmp_path, monkeypatch):
    """Of vectors that are embedded and indexed a part is asked for at a time, and none are held."""
    (tmp_path / "data").mkdir()
    for path, rows in (("data/train", 100), ("data/test", 50)):
        write(tmp_path / f"{path}.parquet", rows, [f"class {row % 5}" for row in range(rows)])
    write(tmp_path / "large.parquet", 20 * BLOCK + 7, [None] * (20 * BLOCK + 7))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(RECIPE | {"data": {"kind": "vectors", "source": str(tmp_path / "data")}}))
    rince("train", recipe, "--out", tmp_path / "run")
    asked, plain = [], FiledVectors.plain

    def told(self, ids):
        asked.append(len(ids))
        return plain(self, ids)

    def refused(self):
        raise AssertionError("all vectors are taken into memory")

    monkeypatch.setattr(FiledVectors, "plain", told)
    monkeypatch.setattr(FiledVectors, "held", refused)
    monkeypatch.setattr("rince.evaluation.streamed.SIZE", BLOCK)
    run, out = open_run(tmp_path / "run"), tmp_path / "out.parquet"
    run.embed_into(out, tmp_path / "large.parquet", which="features")
    assert max(asked) <= BLOCK
    assert sum(asked) == 20 * BLOCK + 7
    assert pq.read_metadata(out).num_rows == 20 * BLOCK + 7
    run.index(tmp_path / "large.parquet", tmp_path / "index.parquet", which="features")
    assert max(asked) <= BLOCK
    assert sum(asked) == 2 * (20 * BLOCK + 7)
    monkeypatch.setattr("rince.evaluation.index.SIZE", BLOCK)
    gallery, before = open_index(run.trained(), tmp_path / "index.parquet", "features"), pa.total_allocated_bytes()
    taken = [(len(block), pa.total_allocated_bytes() - before) for block in gallery.blocks()]
    assert sum(rows for rows, _ in taken) == 20 * BLOCK + 7
    assert max(held for _, held in taken) < 8 * BLOCK * WIDTH * 4  # and searched so


@pytest.mark.parametrize("ending", ["parquet", "npz", "npy", "safetensors"])
def test_rows_are_read_as_they_are_asked_for(ending, tmp_path):
    """In any order, across blocks and files, those that were chosen; as reading all of them at once gives."""
    from safetensors.numpy import save_file  # noqa: PLC0415 - for one of the formats

    vectors = np.random.default_rng(0).normal(size=(9000, 3)).astype(np.float32)
    path = tmp_path / f"some.{ending}"
    if ending == "parquet":
        flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 3)
        pq.write_table(pa.table({"vector": flat}), path, row_group_size=2500)
    else:
        writers = {"npz": lambda: np.savez(path, vectors=vectors), "npy": lambda: np.save(path, vectors)}
        (writers | {"safetensors": lambda: save_file({"vectors": vectors}, path)})[ending]()
    file, chosen = open_vector_file(path), np.arange(9000) % 3 != 1
    parts = [Part(file), Part(file, chosen)]
    expected = torch.from_numpy(np.concatenate([vectors, vectors[chosen]]))
    assert torch.equal(read_vectors(parts, "some"), expected)
    reader = VectorReader(parts, "some")
    for ids in (torch.arange(5), torch.arange(4000, 4200), torch.tensor([14_000, 8999, 9000, 6000]), torch.arange(3)):
        assert torch.equal(reader(ids), expected[ids])


def test_vectors_in_files_are_those_in_memory(tmp_path):
    np.savez(tmp_path / "some.npz", vectors=np.eye(5, 3), labels=[0, 1, 0, 1, 2])
    filed = VectorData(kind="vectors", source="x").find(str(tmp_path / "some.npz"), VectorViewSettings())
    held = filed.held()
    assert filed.fingerprint == held.fingerprint
    assert (filed.shape, len(filed), filed.notes()) == (held.shape, len(held), held.notes())
    assert torch.equal(filed.plain(torch.tensor([2, 0])), held.plain(torch.tensor([2, 0])))
    np.savez(tmp_path / "some.npz", vectors=[[0.0], [np.nan]], labels=[0, 1])
    broken = VectorData(kind="vectors", source="x").find(str(tmp_path / "some.npz"), VectorViewSettings())
    for look in (lambda: broken.fingerprint, lambda: broken.plain(torch.arange(2))):
        with pytest.raises(DataError, match="NaN or infinity in 1 of 2 vectors, the first in row 1"):
            look()
