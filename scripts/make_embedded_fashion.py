"""Makes the embedded data: a balanced part of Fashion-MNIST, as the parquet files that Hugging Face `datasets` reads.

    apt-get install dataset-fashion-mnist        # Debian's package, MIT licence
    python scripts/make_embedded_fashion.py

Takes the first images of every class in the order of the original files, so that the result is the same everywhere.
"""

import gzip
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

SOURCE = Path("/usr/share/datasets/fashion-mnist")
TARGET = Path(__file__).parents[1] / "src/rince/sources/embedded/fashion"
CLASSES = [
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
]  # fmt: skip
PER_CLASS = {"train": 600, "test": 200}


def read_idx(path: Path) -> np.ndarray:
    """An array from the IDX format: a magic number that holds the number of axes, their sizes, the bytes."""
    raw = gzip.decompress(path.read_bytes())
    axes = raw[3]
    shape = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(axes)]
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape)


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def main() -> None:
    features = {"image": {"_type": "Image"}, "label": {"names": CLASSES, "_type": "ClassLabel"}}
    schema = pa.schema(
        [("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])), ("label", pa.int64())],
        metadata={"huggingface": json.dumps({"info": {"features": features}})},
    )
    TARGET.mkdir(parents=True, exist_ok=True)
    for split, prefix in (("train", "train"), ("test", "t10k")):
        images = read_idx(SOURCE / f"{prefix}-images-idx3-ubyte.gz")
        labels = read_idx(SOURCE / f"{prefix}-labels-idx1-ubyte.gz")
        chosen = np.sort(np.concatenate([np.flatnonzero(labels == c)[: PER_CLASS[split]] for c in range(len(CLASSES))]))
        rows = [{"image": {"bytes": png(images[i]), "path": None}, "label": int(labels[i])} for i in chosen]
        path = TARGET / f"{split}-00000-of-00001.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, compression="zstd", compression_level=19)
        print(f"{path}: {len(rows)} images, {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
