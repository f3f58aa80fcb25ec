"""Mutated input for as long as one likes: `make fuzz SECONDS=300`, on all cores.

A target makes an input as bytes and takes it again. Taking it may work, or end in an error that rince raises on
purpose; all else is a finding: another exception, a warning, a wrong number, more than ten seconds, more than four
gigabytes. A finding is saved as `tests/findings/TARGET-HASH`, which `tests/unit/test_findings.py` replays for ever.
What a run does follows from its seed (`SEED=`, by default the time).

To add a target, write a function that makes bytes and one that takes them, and name both in `TARGETS`.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import math
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import sklearn.metrics  # noqa: F401 - what a case imports first would count as its time
import torch
import yaml
from PIL import Image
from safetensors.numpy import save as save_safetensors

from oracles.naive_loss import naive_loss_and_gradient
from rince.bank import MemoryBank
from rince.config import load_recipe
from rince.config.reading import recipe_names, recipe_text
from rince.errors import RinceError
from rince.evaluation.outliers import auroc, fpr_at_recall
from rince.evaluation.retrieval import recall_at_k
from rince.hierarchy.taxonomy import load_taxonomy
from rince.loss import RankedInfoNCE, RankTerm
from rince.ranks import TableRanks
from rince.seals import read_tensors, sealed_tensors
from rince.sources.image_file import OpenedImage
from rince.sources.sealed_tables import whole_table, write_sealed
from rince.sources.text_files import read_table
from rince.sources.vectors import VectorData
from rince.sources.video_layouts import list_videos
from rince.train.checkpoint import load_checkpoint, save_checkpoint
from rince.views.vectors import VectorViewSettings

FINDINGS = Path(__file__).parent / "findings"
LIMIT = 10.0  # seconds of a case
MEMORY = 4 * 2**30  # bytes more than at the start
Take = Callable[[bytes], None]


class Target(NamedTuple):
    """Something that takes what others wrote."""

    make: Callable[[Random], bytes]
    take: Take


class WrongError(AssertionError):
    """What came out is not what the oracle says."""


# Mutation ------------------------------------------------------------------------------------------------------------

BYTES = (0, 1, 9, 10, 13, 32, 34, 35, 38, 39, 42, 44, 45, 46, 47, 58, 61, 91, 92, 123, 127, 128, 0xC3, 0xEF, 0xFE, 0xFF)
VALUES: tuple[Any, ...] = (None, True, False, 0, 1, -1, 3, 2**31, 2**63, 10**400, 1e-9, 0.5, 1.5, 1e300, -0.0)
VALUES += (math.nan, math.inf, -math.inf, "", " ", "nan", "x" * 3000, "é\u202e\0", "../..", "~", "none", "0x10", "1e3")
VALUES += ([], [0], [[]], {}, {"kind": "x"}, {"kind": None}, {1: 2}, [1, "a"], "column", "2020-01-01")


def mutated(content: bytes, random: Random) -> bytes:
    """With a few bytes turned, written over, left out, doubled, put in or cut off."""
    whole = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 4, 16))):
        place, length = random.randrange(len(whole) + 1), random.choice((1, 1, 2, 4, 8, 64))
        what = random.randrange(6)
        if what == 0 and place < len(whole):
            whole[place] ^= 1 << random.randrange(8)
        elif what == 1:
            whole[place : place + length] = bytes(random.choices(BYTES, k=min(length, len(whole) - place)))
        elif what == 2:
            del whole[place : place + length]
        elif what == 3:
            other = random.randrange(len(whole) + 1)
            whole[place:place] = whole[other : other + length]
        elif what == 4:
            whole[place:place] = bytes(random.choices(BYTES, k=length))
        elif random.random() < 0.2:
            del whole[place:]
    return bytes(whole)


def changed_somewhere(values: Any, random: Random) -> Any:
    """Plain values with one of them, at any depth, replaced, left out or added."""
    at, path = values, []
    while isinstance(at, dict | list) and len(at) and (not path or random.random() < 0.8):
        key = random.choice(list(at)) if isinstance(at, dict) else random.randrange(len(at))
        path.append((at, key))
        at = at[key]
    inside, key = path[-1]
    what = random.random()
    if what < 0.15:
        del inside[key]
    elif what < 0.3 and isinstance(inside, dict):
        inside[random.choice(("kind", "base", "", "x", 3, *inside))] = random.choice(VALUES)
    else:
        inside[key] = random.choice(VALUES)
    return values


# Recipes -------------------------------------------------------------------------------------------------------------


def make_recipe(random: Random) -> bytes:
    """A recipe that ships, changed as text or as values."""
    text = recipe_text(random.choice(recipe_names()))
    if random.random() < 0.3:
        return mutated(text.encode(), random)
    values = yaml.safe_load(text)
    for _ in range(random.choice((1, 1, 2, 3))):
        if not isinstance(values, dict) or not values:
            break
        values = changed_somewhere(values, random)
    return yaml.safe_dump(values, allow_unicode=True).encode()


def take_recipe(content: bytes) -> None:
    """Loads; what it says when it is written is the same recipe, and holds no NaN."""
    with as_file(content, ".yaml") as path:
        recipe = load_recipe(path)
    values = recipe.model_dump(mode="json")
    if any(isinstance(value, float) and not math.isfinite(value) for value in _leaves(values)):
        raise WrongError(f"a recipe with a number that is none: {values}")
    with as_file(yaml.safe_dump(recipe.model_dump(mode="json", exclude_none=True)).encode(), ".yaml") as path:
        again = load_recipe(path).model_dump(mode="json")
    if again | {"name": ""} != values | {"name": ""}:
        raise WrongError("a recipe that was written is another when it is read")


def _leaves(value: Any) -> Any:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _leaves(each)
    else:
        yield value


def make_override(random: Random) -> bytes:
    """A recipe's name, and overrides."""
    keys = ("train.batch", "loss.terms", "loss", "model", "model.kind", "data.kind", "views.size", "scale", "seed")
    keys += ("optimizer.lr", "ranks.kind", "method.kind", "model.tune", "bank.size", "schedule.kind", "x", "", "a.b.c")
    chosen = [f"{random.choice(keys)}={random.choice(VALUES)}" for _ in range(random.choice((1, 2, 3)))]
    words = ("in-batch", "tree", "adapter", "all", "pretrained", "sample", "position", "texts", "plateau", "[a, *b]")
    chosen += [f"{random.choice(keys)}={random.choice(words)}"] if random.random() < 0.5 else []
    return json.dumps([random.choice(recipe_names()), *chosen]).encode()


def take_override(content: bytes) -> None:
    """Loads."""
    name, *overrides = json.loads(content)
    load_recipe(name, overrides)


# Calls of the library, against loops ---------------------------------------------------------------------------------


def make_loss(random: Random) -> bytes:
    """Similarities as products of embeddings, so that dense and blockwise forms can both be asked."""
    queries, candidates, terms = random.randint(1, 5), random.randint(1, 12), random.choice((1, 2, 2, 3, 4))
    temperatures = sorted(round(random.uniform(0.05, 1), 3) for _ in range(terms))
    kinds = [random.choice(("in", "out")) for _ in temperatures]
    weights = [random.random() for _ in range(terms + 2)]
    case = {
        "seed": random.randrange(2**31),
        "queries": queries,
        "candidates": candidates,
        "ranks": [random.choices(range(-1, terms + 1), weights, k=candidates) for _ in range(queries)],
        "terms": [
            (t, kind, random.random() < 0.3, random.choice(("own", "all")) if kind == "out" else "own", random.random())
            for t, kind in zip(temperatures, kinds, strict=True)
        ],
        "over_positives": random.choice(("mean", "sum", "pooled")),
        "over_ranks": random.choice(("sum", "mean")),
        "block_size": random.choice((None, 1, 2, 3)),
        "single": random.random() < 0.5,
        "rank_type": random.choice(("int8", "int16", "int32", "int64")),
    }
    return json.dumps(case).encode()


def take_loss(content: bytes) -> None:
    """Dense = blockwise = loop, values and gradients."""
    case = json.loads(content)
    generator = torch.Generator().manual_seed(case["seed"])
    dtype = torch.float32 if case["single"] else torch.float64
    queries, candidates = (
        torch.nn.functional.normalize(torch.randn(case[name], 4, generator=generator, dtype=torch.float64), dim=1)
        .to(dtype)
        .requires_grad_()
        for name in ("queries", "candidates")
    )
    ranks = torch.tensor(case["ranks"], dtype=getattr(torch, case["rank_type"]))
    options = {name: case[name] for name in ("over_positives", "over_ranks")}
    loss = RankedInfoNCE([RankTerm(*term) for term in case["terms"]], **options)
    similarities = (queries @ candidates.T).detach().requires_grad_()
    value, gradient = naive_loss_and_gradient(similarities.tolist(), case["ranks"], case["terms"], **options)
    dense = loss(similarities, ranks).total
    near = partial(_near, rtol=1e-4 if case["single"] else 1e-9)
    near(dense.item(), value, "dense value")
    (found,) = torch.autograd.grad(dense, similarities)
    near(found, gradient, "dense gradient")
    block = loss.from_embeddings(queries, candidates, ranks, block_size=case["block_size"]).total
    near(block.item(), value, "blockwise value")
    of_queries, of_candidates = torch.autograd.grad(block, (queries, candidates))
    near(of_queries, gradient @ candidates.detach().double(), "blockwise gradient of queries")
    near(of_candidates, gradient.T @ queries.detach().double(), "blockwise gradient of candidates")


def _near(found: Any, expected: Any, what: str, rtol: float = 1e-9) -> None:
    found, expected = torch.as_tensor(found).double(), torch.as_tensor(expected).double()
    if not torch.allclose(found, expected, rtol=rtol, atol=rtol):
        raise WrongError(f"{what}: {found.tolist()} where the loop has {expected.tolist()}")


def make_metric(random: Random) -> bytes:
    """Scores and vectors from few values, so that many are equal."""
    few = [random.choice((0.0, 1.0, -1.0, 1e-30, 1e30, random.gauss(0, 1), 1 + 1e-9, 1.0000001)) for _ in range(4)]
    scores = [[random.choice(few) for _ in range(random.randint(1, 9))] for _ in range(2)]
    small = [random.choice((-1.0, 0.0, 1.0, 2.0)) for _ in range(60)]
    labels = [random.randrange(3) for _ in range(20)]
    return json.dumps({"scores": scores, "vectors": small, "labels": labels, "k": random.choice((1, 1, 2, 5))}).encode()


def take_metric(content: bytes) -> None:
    """AUROC and FPR by counting pairs, recall by sorting cosines, ties to the first."""
    case = json.loads(content)
    inliers, outliers = case["scores"]
    pairs = [1.0 if one > other else 0.5 if one == other else 0.0 for one in inliers for other in outliers]
    given = [torch.tensor(scores, dtype=torch.float64) for scores in (inliers, outliers)]
    _near(auroc(*given), sum(pairs) / len(pairs), "auroc")
    threshold = sorted(inliers, reverse=True)[math.ceil(0.95 * len(inliers)) - 1]
    accepted = sum(score >= threshold for score in outliers) / len(outliers)
    _near(fpr_at_recall(*given), accepted, "fpr at a recall of 0.95")
    vectors = np.array(case["vectors"]).reshape(20, 3)
    vectors[~vectors.any(axis=1)] = 1.0
    queries, gallery, labels, k = vectors[:6], vectors[6:], np.array(case["labels"]), case["k"]
    unit = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in (queries, gallery)]
    cosines = np.round(unit[0] @ unit[1].T, 6)
    hits = [
        any(labels[6 + place] == labels[row] for place in sorted(range(14), key=lambda i, at=at: -at[i])[:k])
        for row, at in enumerate(cosines)
    ]
    given_labels = torch.from_numpy(labels)
    found = recall_at_k(
        torch.from_numpy(queries),
        torch.from_numpy(gallery),
        query_labels=given_labels[:6],
        gallery_labels=given_labels[6:],
        k=k,
    )
    kth = np.sort(-cosines, axis=1)
    if not (kth[:, k - 1] == kth[:, k]).any():  # which of equal ones comes first is said elsewhere
        _near(found, sum(hits) / 6, "recall")


def make_ranks(random: Random) -> bytes:
    """Paths of classes, and labels."""
    names, depth = "abc", random.randint(1, 4)
    paths = {tuple(random.choice(names) for _ in range(depth)) for _ in range(random.randint(1, 8))}
    chosen = [[*path[:-1], f"{number}"] for number, path in enumerate(sorted(paths))]
    labels = [random.randrange(len(chosen)) for _ in range(12)]
    bank = {"size": random.randint(1, 9), "pushes": [random.randint(0, 4) for _ in range(5)]}
    return json.dumps({"paths": chosen, "labels": labels, "bank": bank}).encode()


def take_ranks(content: bytes) -> None:
    """Ranks by counting what paths share; the bank against a list."""
    case = json.loads(content)
    paths, labels = [tuple(path) for path in case["paths"]], case["labels"]
    found = TableRanks.from_tree(paths)(torch.tensor(labels[:6]), torch.tensor(labels[6:]))
    for row, column in itertools.product(range(6), range(6)):
        one, other = paths[labels[row]], paths[labels[6 + column]]
        shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=True)))
        expected = len(one) - shared + 1 if shared else 0
        if int(found[row, column]) != expected:
            raise WrongError(f"rank of {one} and {other}: {int(found[row, column])} where the paths say {expected}")
    size, number, kept = case["bank"]["size"], 0, []
    bank = MemoryBank(size, 2)
    for pushed in case["bank"]["pushes"]:
        if pushed > size:
            continue
        keys = torch.tensor([[1.0, 0.0]]).repeat(pushed, 1)
        bank.push(keys, torch.arange(number, number + pushed))
        kept = (kept + list(range(number, number + pushed)))[-size:]
        number += pushed
    if sorted(bank.labels[bank.labels >= 0].tolist()) != sorted(kept):
        raise WrongError(f"the bank holds {bank.labels.tolist()} and should hold {kept}")


# Files ---------------------------------------------------------------------------------------------------------------


@cache
def whole_checkpoint() -> bytes:
    """A small one."""
    weights = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(weights.parameters(), lr=0.1, momentum=0.9)
    weights(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    state = {"step": 3, "encoder": weights.state_dict(), "optimizer": optimizer.state_dict()}
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(Path(folder) / "last.ckpt", state)
        return (Path(folder) / "last.ckpt").read_bytes()


def take_checkpoint(content: bytes) -> None:
    """Refused, unless nothing was changed."""
    with as_file(content, ".ckpt") as path:
        load_checkpoint(path, {"step", "encoder", "optimizer"})
    if content != whole_checkpoint():
        raise WrongError("a damaged checkpoint is accepted")


@cache
def whole_features() -> bytes:
    """As they are kept beside a run."""
    return sealed_tensors({"features": torch.arange(12.0).view(3, 4)}, {"made_from": "0" * 64})


def take_features(content: bytes) -> None:
    """Refused, unless nothing was changed."""
    with as_file(content, ".safetensors") as path:
        read_tensors(path)
    if content != whole_features():
        raise WrongError("damaged features are accepted")


@cache
def whole_index() -> bytes:
    """Embeddings with what an index notes, in two row groups."""
    numbers = np.arange(40, dtype=np.float32) / 7
    table = pa.table(
        {
            "path": [f"{row}.jpg" for row in range(10)],
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(numbers), 4),
            "label": ["a", "b"] * 5,
        }
    ).replace_schema_metadata({"rince.index": "{}"})
    file = io.BytesIO()
    write_sealed(file, [table[:7], table[7:]], table.schema)
    return file.getvalue()


def index_content(content: bytes) -> tuple[Any, ...]:
    """Vectors and labels as a file of vectors, and all of it as a table."""
    with as_file(content, ".parquet") as path:
        found = VectorData(kind="vectors", source=str(path)).find(str(path), VectorViewSettings())
        table = whole_table(path)
    return found.vectors.tolist(), found.labels.tolist(), found.class_names, table.to_pydict()


@cache
def index_as_written() -> tuple[Any, ...]:
    """What must come out, if anything does."""
    return index_content(whole_index())


def take_index(content: bytes) -> None:
    """Refused, or the same content; without a seal it is a file of others."""
    if index_content(content) != index_as_written() and b"rince.sha256" in content:
        raise WrongError("a damaged index is read as another")


@cache
def vector_files() -> tuple[tuple[str, bytes], ...]:
    """One of each format."""
    vectors = np.arange(24, dtype=np.float32).reshape(6, 4) + 1
    labels = np.array(["a", "a", "b", "b", "c", "c"])
    npz, npy, parquet = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.savez(npz, features=vectors, labels=labels)
    np.save(npy, vectors)
    pq.write_table(pa.table({"vector": vectors.tolist(), "label": labels.tolist()}), parquet)
    safetensors = save_safetensors({"features": vectors, "labels": np.arange(6)})
    return (
        (".npz", npz.getvalue()),
        (".npy", npy.getvalue()),
        (".parquet", parquet.getvalue()),
        (".safetensors", safetensors),
    )


def make_vectors(random: Random) -> bytes:
    """One of them, its ending first."""
    ending, content = random.choice(vector_files())
    return ending.encode() + b"\n" + mutated(content, random)


def take_vectors(content: bytes) -> None:
    """Numbers, all finite."""
    ending, _, rest = content.partition(b"\n")
    with as_file(rest, ending.decode()) as path:
        found = VectorData(kind="vectors", source=str(path)).find(str(path), VectorViewSettings())
        vectors = found.plain(torch.arange(len(found)))
    if vectors.ndim != 2 or not vectors.isfinite().all() or len(found.labels) != len(vectors):
        raise WrongError(f"vectors that are none: {tuple(vectors.shape)}, {len(found.labels)} labels")


@cache
def image_files() -> tuple[bytes, ...]:
    """One of each format."""
    found = []
    pixels = np.random.default_rng(0).integers(0, 256, (24, 31, 3), np.uint8)
    for kind, options in (
        ("PNG", {}),
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("GIF", {}),
        ("WEBP", {}),
        ("BMP", {}),
    ):
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, kind, **options)
        found.append(file.getvalue())
    return tuple(found)


def take_image(content: bytes) -> None:
    """Pixels of the size it says; of bytes left over a person is warned."""
    warnings.filterwarnings("ignore", "the image may be damaged")
    with OpenedImage(content, "the image") as opened:
        pixels = opened.pixels()
        size = opened.height, opened.width
    if pixels.shape[1:] != size or pixels.dtype != np.uint8:
        raise WrongError(f"pixels that are none: {pixels.dtype} {pixels.shape}")


VIDEO_LISTS = {
    "manifest": {"videos.csv": b"path,label,split\nv/a1.avi,a,train\nv/a2.avi,a,test\nv/b1.avi,b,train\n"},
    "ucf101": {
        "ucfTrainTestlist/classInd.txt": b"1 a\n2 b\n",
        "ucfTrainTestlist/trainlist01.txt": b"a/a1.avi 1\nb/b1.avi 2\n",
        "ucfTrainTestlist/testlist01.txt": b"a/a2.avi\n",
    },
    "hmdb51": {
        "testTrainMulti_7030_splits/a_test_split1.txt": b"a1.avi 1 \na2.avi 2 \n",
        "testTrainMulti_7030_splits/b_test_split1.txt": b"b1.avi 1 \n",
    },
    "kinetics400": {"train.csv": b"label,youtube_id,time_start,time_end,split\na,a1,0,10,train\nb,b1,0,10,train\n"},
}


def make_list(random: Random) -> bytes:
    """The file's name, and what it holds."""
    name, content = random.choice([each for lists in VIDEO_LISTS.values() for each in lists.items()])
    return name.encode() + b"\n" + mutated(content, random)


def take_list(content: bytes) -> None:
    """A list of videos, in every layout that reads this file."""
    name, _, rest = content.partition(b"\n")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for video in ("v/a1.avi", "v/a2.avi", "v/b1.avi", "a/a1.avi", "a/a2.avi", "b/b1.avi"):
            (root / video).parent.mkdir(exist_ok=True)
            (root / video).write_bytes(b"")
        changed = name.decode()
        layout = next(layout for layout, lists in VIDEO_LISTS.items() if changed in lists)
        for each, whole in VIDEO_LISTS[layout].items():
            (root / each).parent.mkdir(exist_ok=True)
            (root / each).write_bytes(rest if each == changed else whole)
        list_videos(root / changed if layout == "manifest" else root, "train", layout=layout)


TAXONOMIES = {
    ".yaml": b"levels: [class, group]\ntree:\n  animal: [dog, cat]\n  plant: [oak, rose]\n",
    ".csv": b"top,group,class\nalive,animal,dog\nalive,animal,cat\nalive,plant,oak\n",
}
TABLES = {
    ".csv": b'text,intent,domain\n"how, much",price,money\nwhere,way,travel\n',
    ".tsv": b"text\tintent\nhow much\tprice\n",
    ".jsonl": b'{"text": "how much", "intent": "price"}\n{"text": "where", "intent": "way"}\n',
}


def make_one_of(files: dict[str, bytes], random: Random) -> bytes:
    """Its ending first."""
    ending = random.choice(list(files))
    return ending.encode() + b"\n" + mutated(files[ending], random)


def take_with(read: Callable[[Path], object], content: bytes) -> None:
    """Reads."""
    ending, _, rest = content.partition(b"\n")
    with as_file(rest, ending.decode()) as path:
        read(path)


@contextmanager
def as_file(content: bytes, ending: str):
    """A file that holds it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"given{ending}"
        path.write_bytes(content)
        yield path


TARGETS = {
    "recipe": Target(make_recipe, take_recipe),
    "override": Target(make_override, take_override),
    "loss": Target(make_loss, take_loss),
    "metric": Target(make_metric, take_metric),
    "ranks": Target(make_ranks, take_ranks),
    "checkpoint": Target(lambda random: mutated(whole_checkpoint(), random), take_checkpoint),
    "features": Target(lambda random: mutated(whole_features(), random), take_features),
    "index": Target(lambda random: mutated(whole_index(), random), take_index),
    "vectors": Target(make_vectors, take_vectors),
    "image": Target(lambda random: mutated(random.choice(image_files()), random), take_image),
    "list": Target(make_list, take_list),
    "taxonomy": Target(partial(make_one_of, TAXONOMIES), partial(take_with, load_taxonomy)),
    "table": Target(partial(make_one_of, TABLES), partial(take_with, read_table)),
}


# Running -------------------------------------------------------------------------------------------------------------


def finding(target: str, content: bytes) -> str:
    """What is wrong with how an input is taken; empty if nothing is."""

    def too_long(*_: object) -> None:
        raise TimeoutError(f"takes more than {LIMIT:.0f} seconds")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            TARGETS[target].take(content)
    except RinceError as error:
        return "" if str(error).strip() else "an error that says nothing"
    except BaseException as error:  # whatever it is: that is what is looked for
        if isinstance(error, KeyboardInterrupt):
            raise
        return "".join(traceback.format_exception(error)[-4:])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return ""


def kind_of(target: str, told: str) -> tuple[str, ...]:
    """What findings of one cause have in common: the target, the last line of the traceback's code, the exception."""
    lines = told.strip().splitlines()
    code = [line for line in lines if line.startswith("  File ")]
    return target, *code[-1:], lines[-1].partition(":")[0]


def search(seed: int, until: float) -> tuple[Counter[str], list[tuple[str, bytes, str]]]:
    """Cases tried by target, and findings, of one process."""
    torch.set_num_threads(1)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    random, tried, found = Random(seed), Counter[str](), []
    kinds: set[tuple[str, ...]] = set()
    for name in itertools.cycle(TARGETS):
        if time.monotonic() > until:
            return tried, found
        for _ in range(10):
            content = TARGETS[name].make(random)
            told = finding(name, content)
            tried[name] += 1
            if told and kind_of(name, told) not in kinds:  # one of a kind is enough
                kinds.add(kind_of(name, told))
                found.append((name, content, told))
    raise AssertionError


def main(seconds: float, seed: int, processes: int) -> int:
    """0 if nothing was found."""
    until = time.monotonic() + seconds
    print(f"{seconds:.0f} seconds on {processes} processes, seed {seed}", flush=True)
    with ProcessPoolExecutor(processes) as pool:
        done = [pool.submit(search, seed * 1000 + number, until) for number in range(processes)]
        results = [each.result() for each in done]
    tried = sum((tried for tried, _ in results), Counter())
    for name, content, told in (each for _, found in results for each in found):
        FINDINGS.mkdir(exist_ok=True)
        place = FINDINGS / f"{name}-{hashlib.sha256(content).hexdigest()[:12]}"
        place.write_bytes(content)
        print(f"\n{place.relative_to(FINDINGS.parents[1])}\n{told}")
    number = sum(len(found) for _, found in results)
    print(", ".join(f"{name} {count:,}" for name, count in sorted(tried.items())))
    print(f"{tried.total():,} cases, {number} findings")
    return int(number > 0)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time()), os.cpu_count() or 1))
