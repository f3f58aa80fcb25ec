"""Exact search in an index on disk, against FAISS's flat index in memory: time and peak memory, measured in one run.

    python benchmarks/search_speed.py [VECTORS]        (a million by default)

1,000 queries look for their 10 nearest among VECTORS unit vectors of 384 numbers, which lie in a parquet file as
`rince index` writes it. Ours reads it block by block; FAISS is given all of it. Each side has a process to itself, so
that its peak memory is its own: what is resident at most, less what is resident before the search begins. Time is that
of the processor, one thread. Both have to find the same.

Writes `search_speed.csv` beside this file; a smaller number is printed only.
"""

import csv
import importlib
import json
import multiprocessing
import os
import platform
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from measure import processor
from rince.evaluation.nearest import nearest_in_blocks
from rince.evaluation.streamed import SIZE, as_matrix

CSV = Path(__file__).with_suffix(".csv")
FULL, DIM, QUERIES, K = 1_000_000, 384, 1000, 10


def unit(number: int, seed: int) -> torch.Tensor:
    vectors = torch.randn(number, DIM, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(vectors, dim=1)


def write(path: Path, number: int) -> None:
    schema = pa.schema([("vector", pa.list_(pa.float32(), DIM))])
    with pq.ParquetWriter(path, schema, compression="none") as writer:
        for part, rows in enumerate(torch.arange(number).split(SIZE)):
            flat = pa.array(unit(len(rows), part).flatten().numpy())
            writer.write_table(pa.table({"vector": pa.FixedSizeListArray.from_arrays(flat, DIM)}))


def blocks(path: Path):
    for batch in pq.ParquetFile(path, pre_buffer=False).iter_batches(batch_size=SIZE, columns=["vector"]):
        yield as_matrix(batch.column(0))


def ours(path: Path) -> np.ndarray:
    return nearest_in_blocks(unit(QUERIES, 999_999), blocks(path), K).rows.numpy()


def flat_index(path: Path) -> np.ndarray:
    import faiss  # noqa: PLC0415 - in a process of its own; loaded before the clock starts

    faiss.omp_set_num_threads(torch.get_num_threads())
    index = faiss.IndexFlatIP(DIM)
    for block in blocks(path):
        index.add(block.numpy())
    return index.search(unit(QUERIES, 999_999).numpy(), K)[1]


def measured(side: str, path: Path, out: Path) -> None:
    torch.set_num_threads(1)
    if side == "faiss":
        importlib.import_module("faiss")
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    rows = {"ours": ours, "faiss": flat_index}[side](path)
    took = time.process_time() - start
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    np.save(out, rows)
    out.with_suffix(".json").write_text(json.dumps({"seconds": took, "bytes": peak}))


def main() -> None:
    number = int(sys.argv[1]) if len(sys.argv) > 1 else FULL
    with tempfile.TemporaryDirectory() as folder:
        path, found = Path(folder) / "index.parquet", {}
        write(path, number)
        for side in ("ours", "faiss"):
            out = Path(folder) / f"{side}.npy"
            process = multiprocessing.get_context("spawn").Process(target=measured, args=(side, path, out))
            process.start()
            process.join()
            found[side] = json.loads(out.with_suffix(".json").read_text()) | {"rows": np.load(out)}
    same = float((found["ours"]["rows"] == found["faiss"]["rows"]).mean())
    rows = [
        ("vectors", number, f"of {DIM}; {QUERIES} queries, k = {K}, one thread"),
        (
            "time, ours / FAISS",
            f"{found['ours']['seconds'] / found['faiss']['seconds']:.2f}",
            "reading the file included",
        ),
        ("peak memory, ours", f"{found['ours']['bytes'] / 2**20:.0f}", "MB above what was resident before"),
        ("peak memory, FAISS", f"{found['faiss']['bytes'] / 2**20:.0f}", "MB above what was resident before"),
        ("same neighbours", same, "share; others are equal to the last digit of float32"),
        ("load average of the machine", f"{os.getloadavg()[0]:.1f}", "in the end"),
        ("machine", processor(), f"torch {torch.__version__}, Python {platform.python_version()}"),
    ]
    table = [("what", "value", "note"), *rows]
    csv.writer(sys.stdout).writerows(table)
    if number == FULL:
        with CSV.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(table)


if __name__ == "__main__":
    main()
