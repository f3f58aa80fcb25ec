"""Makes the embedded texts: definitions of nouns from WordNet 3.0, as parquet files.

    apt-get install wordnet-base        # Debian's package, WordNet licence
    python scripts/make_embedded_definitions.py

What is in it follows from these rules alone, fixed before anything was trained on it:

- A sample is the definition of a noun: its gloss without the examples, otherwise as it stands, even if it names its
  class. Left out are instances (Paris), nouns with several hypernyms or with one from another lexicographer's file,
  taxonomic groups (Latin names of genera and families), and definitions that several nouns share.
- A class is a hypernym, direct or further up, that has at least 150 such definitions below it, while none of its own
  hyponyms has as many; so no definition is in two classes. (Only some thirty nouns have a hundred direct hyponyms, most
  of them in botany.) It is called by its first word; of two classes of one name the larger stays.
- A group is a lexicographer's file, such as animal or food, with its six largest classes. The ten groups with the most
  classes are the data, the next two the outliers; of equally many, those with more definitions.
- Of every class the 150 definitions whose sha256 is smallest are kept: the first 100 are train, the other 50 are test.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

SOURCE = Path("/usr/share/wordnet/data.noun")
TARGET = Path(__file__).parents[1] / "src/rince/sources/embedded/definitions"
# Lexicographer's files of nouns, from number 3 on: lexnames(5WN).
FILES = [
    "Tops", "act", "animal", "artifact", "attribute", "body", "cognition", "communication", "event", "feeling", "food",
    "group", "location", "motive", "object", "person", "phenomenon", "plant", "possession", "process", "quantity",
    "relation", "shape", "state", "substance", "time",
]  # fmt: skip
LATIN = "taxonomic_group"


class Noun(NamedTuple):
    """A synset."""

    words: list[str]
    group: str
    above: list[str]
    """Synsets it is a kind of."""
    is_instance: bool
    definition: str


class Row(NamedTuple):
    """A sample."""

    text: str
    name: str
    group: str


def read_nouns(lines: Iterable[str]) -> dict[str, Noun]:
    """Synsets by their number, from the lines of data.noun: wndb(5WN)."""
    nouns = {}
    for line in lines:
        if line.startswith("  "):  # the licence
            continue
        head, gloss = line.split(" | ", 1)
        number, file, _, count, *rest = head.split()
        words = rest[: 2 * int(count, 16) : 2]
        pointers = rest[2 * int(count, 16) + 1 :]
        kinds = list(zip(pointers[::4], pointers[1::4], strict=False))
        above = [to for symbol, to in kinds if symbol == "@"]
        is_instance = any(symbol == "@i" for symbol, _ in kinds)
        nouns[number] = Noun(words, FILES[int(file) - 3], above, is_instance, definition_of(gloss))
    return nouns


def definition_of(gloss: str) -> str:
    """A gloss up to its first example."""
    return gloss.split('; "', maxsplit=1)[0].split(': "', maxsplit=1)[0].strip().rstrip(";:").strip()


def parent(noun: Noun, nouns: dict[str, Noun]) -> str | None:
    """Its hypernym, if there is one alone and from the same file."""
    above = [] if noun.is_instance else noun.above
    return above[0] if len(above) == 1 and nouns[above[0]].group == noun.group else None


def is_latin(noun: Noun, nouns: dict[str, Noun]) -> bool:
    """Whether it is a taxonomic group."""
    return LATIN in noun.words or any(is_latin(nouns[number], nouns) for number in noun.above)


def definitions_below(nouns: dict[str, Noun]) -> dict[str, list[str]]:
    """For every noun the definitions of all that stand below it."""
    shared = Counter(noun.definition for noun in nouns.values())
    found: dict[str, list[str]] = defaultdict(list)
    for noun in nouns.values():
        if noun.definition and shared[noun.definition] == 1 and not is_latin(noun, nouns):
            above = parent(noun, nouns)
            while above is not None:
                found[above].append(noun.definition)
                above = parent(nouns[above], nouns)
    return found


def choose_classes(nouns: dict[str, Noun], least: int, most: int) -> dict[str, dict[str, list[str]]]:
    """Group → class → definitions, the groups with the most classes first; at most so many classes a group."""
    definitions = definitions_below(nouns)
    enough = {number for number, below in definitions.items() if len(below) >= least}
    lowest = enough - {parent(nouns[number], nouns) for number in enough}
    groups: dict[str, dict[str, list[str]]] = defaultdict(dict)
    taken: set[str] = set()
    for number in sorted(lowest, key=lambda number: (-len(definitions[number]), number)):
        name, group = nouns[number].words[0].replace("_", " "), nouns[number].group
        if name not in taken and len(groups[group]) < most:
            taken.add(name)
            groups[group][name] = definitions[number]
    ordered = sorted(groups, key=lambda group: (-len(groups[group]), -sum(map(len, groups[group].values())), group))
    return {group: groups[group] for group in ordered}


def choose(
    nouns: dict[str, Noun], *, train: int = 100, test: int = 50, classes: int = 6, groups: int = 10, outliers: int = 2
) -> dict[str, list[Row]]:
    """File → its samples, by the rules above."""
    files: dict[str, list[Row]] = {"train": [], "test": [], "outliers": []}
    chosen = choose_classes(nouns, train + test, classes)
    for place, group in enumerate(list(chosen)[: groups + outliers]):
        for name, definitions in sorted(chosen[group].items()):
            kept = sorted(definitions, key=lambda text: hashlib.sha256(text.encode()).digest())[: train + test]
            rows = [Row(text, name, group) for text in kept]
            if place < groups:
                files["train"] += rows[:train]
                files["test"] += rows[train:]
            else:
                files["outliers"] += rows
    return files


def main() -> None:
    nouns = read_nouns(SOURCE.read_text("utf-8").splitlines())
    TARGET.mkdir(parents=True, exist_ok=True)
    for file, rows in choose(nouns).items():
        path = TARGET / f"{file}.parquet"
        rows.sort(key=lambda row: (row.group, row.name, row.text))  # alike beside alike, which is smaller
        texts, names, groups = zip(*rows, strict=True)
        table = pa.table({"text": texts, "class": names, "group": groups})
        pq.write_table(table, path, compression="zstd", compression_level=19)
        print(f"{path}: {len(rows)} definitions, {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
