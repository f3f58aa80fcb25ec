"""Compiled code that is damaged, cannot be written, or could be somebody else's costs seconds, never a training."""

import os
import shutil
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from rince.views.kept_code import compiled
@compiled
def inner(x):
    return x + 1
@compiled
def outer(x):
    return inner(x) * 2
print(outer(20), sum(outer.stats.cache_hits.values()))
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("program") / "program.py"
    path.write_text(PROGRAM)
    return path


def run(program, cache, umask=0o022):
    done = subprocess.run(
        [sys.executable, program],
        env=os.environ | {"XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        check=False,
        umask=umask,
    )
    assert done.returncode == 0, done.stderr
    result, hits = done.stdout.split()
    assert result == "42"
    return int(hits), done.stderr


@pytest.fixture(scope="module")
def made(program, tmp_path_factory):
    """A cache with what was compiled."""
    cache = tmp_path_factory.mktemp("made")
    assert run(program, cache) == (0, "")
    return cache


@pytest.fixture
def cache(made, tmp_path):
    """A copy of it."""
    return shutil.copytree(made, tmp_path / "cache")


def kept(cache):
    return sorted((cache / "rince" / "compiled").rglob("*.nb*"))


def test_it_is_found_again(program, cache):
    assert len(kept(cache)) == 4
    assert run(program, cache) == (1, "")


def test_it_is_kept_where_nobody_else_can_write(program, tmp_path):
    run(program, tmp_path, umask=0o002)
    assert {folder.stat().st_mode & 0o077 for folder in (path.parent for path in kept(tmp_path))} == {0}


@pytest.mark.parametrize(
    ("end", "damage"),
    [("nbc", lambda content: content[:-9]), ("nbi", lambda content: b"cos\n" + content)],
)
def test_what_is_damaged_is_compiled_again(program, cache, end, damage):
    for path in kept(cache):
        if path.suffix == f".{end}":
            path.write_bytes(damage(path.read_bytes()))
    hits, said = run(program, cache)
    assert hits == 0
    assert said.count("is damaged or cannot be read; it is compiled again") == 1
    assert {path.suffix for path in kept(cache)} == {".nbi", ".nbc"}


def test_a_flipped_bit_of_machine_code_is_not_run(program, cache):
    for path in kept(cache):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    assert run(program, cache)[0] == 0
    assert run(program, cache) == (1, "")  # what was compiled again is kept


def test_nothing_is_read_that_others_could_have_written(program, cache, tmp_path):
    folder = kept(cache)[0].parent
    for path in kept(cache):
        path.write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "owned").encode() + b"'\ntR.")
    folder.chmod(0o777)
    hits, said = run(program, cache)
    assert hits == 0
    assert f"others can write {folder}" in said
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("refused", ["no folder", "no room"])
def test_where_nothing_can_be_written_nothing_is_kept(program, tmp_path, refused):
    if refused == "no folder":
        (tmp_path / "rince").write_text("a file")
        assert run(program, tmp_path)[0] == 0
    else:
        limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n{PROGRAM}"
        (tmp_path / "limited.py").write_text(limited)
        hits, said = run(tmp_path / "limited.py", tmp_path)
        assert hits == 0
        assert "compiled code is not kept" in said
        assert "File too large" in said
        assert not kept(tmp_path)
