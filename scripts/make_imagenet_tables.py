"""Makes what ships about ImageNet's classes: their part of WordNet.

    apt-get install wordnet-base        # Debian's package of WordNet 3.0, whose offsets are ImageNet's ids
    python scripts/make_imagenet_tables.py

The table has a row for every hypernym of every class and of every hypernym, up to the root.
"""

import csv
import io
from pathlib import Path

WORDNET = Path("/usr/share/wordnet/data.noun")
SOURCE = Path(__file__).parents[1] / "src/rince"
LISTS, TABLE, NOTICE = (SOURCE / part for part in ("hierarchy/lists", "hierarchy/wordnet.csv", "hierarchy/NOTICE"))
HYPERNYMS = ("@", "@i")  # kinds, and instances of kinds


def read_list(name: str) -> list[str]:
    lines = (LISTS / f"{name}.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def read_wordnet() -> tuple[dict[str, tuple[str, list[str]]], str]:
    """Id → first name and hypernyms, and the licence that stands on top of the file."""
    synsets, licence = {}, []
    for line in WORDNET.read_text().splitlines():
        if line.startswith("  "):
            licence.append(line.strip().partition(" ")[2].rstrip())
            continue
        # offset file kind words(hex) {word number}… pointers {symbol offset kind positions}… | meaning
        cells = line.partition(" | ")[0].split()
        words = int(cells[3], 16)
        pointers = cells[5 + 2 * words :]
        hypernyms = [f"n{pointers[i + 1]}" for i in range(0, len(pointers), 4) if pointers[i] in HYPERNYMS]
        synsets[f"n{cells[0]}"] = (cells[4], hypernyms)
    return synsets, "\n".join(licence).strip()


def make_table() -> None:
    synsets, licence = read_wordnet()
    wanted = [*read_list("imagenet1k"), *read_list("tiny-imagenet-180"), *read_list("tiny-imagenet-20")]
    needed: set[str] = set()
    while wanted:
        wnid = wanted.pop()
        if wnid not in needed:
            needed.add(wnid)
            wanted += synsets[wnid][1]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["child", "parent", "name"])
    for wnid in sorted(needed):
        name, hypernyms = synsets[wnid]
        for parent in hypernyms or [""]:
            writer.writerow([wnid, parent, name.replace("_", " ")])
    TABLE.write_text(out.getvalue())
    NOTICE.write_text(
        "wordnet.csv is a part of WordNet 3.0: the synsets of ImageNet's classes with their first names, and all\n"
        f"hypernyms of them (scripts/make_imagenet_tables.py). WordNet comes with this licence:\n\n{licence}\n"
    )
    print(f"{TABLE}: {len(needed)} synsets, {TABLE.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    make_table()
