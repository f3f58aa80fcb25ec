"""The direction of the rooms: a room may import those before it in this list, and no other."""

import ast
from pathlib import Path

import pytest

import rince

ROOT = Path(rince.__file__).parent
# In the order in which data flows: what stands further down may import what stands further up.
ROOMS = {
    "ground": "errors lazy devices inputs ranks sample_ranks label_sets blockwise checks first_look loss processes batches "
    "ranked_batches cached "
    "bank momentum moco draws files seals memory terminal registry extras",
    "losses": "losses",
    "config": "config",
    "views": "views",
    "hierarchy": "hierarchy",
    "sources": "sources",
    "encoders": "encoders",
    "methods": "methods",
    "train": "train",
    "evaluation": "evaluation",
    "report": "report",
    "analysis": "analysis",
    "integrations": "integrations",
    "doors": "run reproduce cli __main__",
}
ORDER = list(ROOMS)
ROOM_OF = {part: room for room, parts in ROOMS.items() for part in parts.split()}
HEAVY = {"lightning_fabric": "train/runtime.py", "av": "sources/video_file.py", "datasets": "sources/tables.py"}


def files():
    return sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def room_of(path: Path) -> str:
    return ROOM_OF[path.relative_to(ROOT).parts[0].removesuffix(".py")]


def imports_of(path: Path) -> list[tuple[str, int]]:
    """Modules that a file imports, wherever in it, but for those that only type checkers see; each with its line."""
    tree = ast.parse(path.read_text("utf-8"))
    unseen = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = []
    for node in ast.walk(tree):
        if id(node) in unseen:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: {node.lineno} imports relatively"
            # `from rince.sources import order` is the module below, if there is one of that name.
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def edges() -> list[tuple[str, str, str]]:
    """(room, room it imports, where) of every import between two rooms."""
    found = []
    for path in files():
        for module, line in imports_of(path):
            parts = module.split(".")
            if parts[0] != "rince" or len(parts) < 2 or parts[1] not in ROOM_OF:
                continue
            room, other = room_of(path), ROOM_OF[parts[1]]
            if room != other:
                found.append((room, other, f"{path.relative_to(ROOT)}:{line} imports {module}"))
    return found


def test_every_file_stands_in_a_room():
    assert len(files()) > 100
    assert {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in files()} == set(ROOM_OF)


def test_imports_go_one_way():
    found = edges()
    assert len(found) > 200
    wrong = [where for room, other, where in found if ORDER.index(other) > ORDER.index(room)]
    assert not wrong, "a room imports one that comes after it:\n" + "\n".join(wrong)


def test_the_picture_in_the_docs_is_of_this_graph():
    """`docs/architecture.md` draws the rooms and their edges; `docs/figures/draw_rooms.py` makes it anew."""
    drawn = (ROOT.parents[1] / "docs" / "figures" / "rooms.svg").read_text("utf-8")
    for room, other, _ in edges():
        assert f'data-edge="{room} {other}"' in drawn, f"{room} imports {other}; draw it: docs/figures/draw_rooms.py"
    assert drawn.count("data-edge=") == len({(room, other) for room, other, _ in edges()})


@pytest.mark.parametrize(("package", "home"), HEAVY.items())
def test_a_heavy_package_is_imported_in_one_file(package, home):
    users = {
        str(path.relative_to(ROOT))
        for path in files()
        for module, _ in imports_of(path)
        if module.partition(".")[0] == package
    }
    assert users == {home}


def test_the_method_is_in_files_that_need_torch_alone():
    """Who reads the ground floor knows the method; it needs torch, our errors, and nothing above."""
    for path in files():
        if room_of(path) == "ground" and path.stem not in ("registry", "terminal", "lazy", "seals"):
            outside = {module.partition(".")[0] for module, _ in imports_of(path)} - {"rince", "torch", "__future__"}
            assert outside <= set(__import__("sys").stdlib_module_names), path
