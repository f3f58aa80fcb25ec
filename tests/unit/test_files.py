"""What a file is by its content: hashed once, remembered, never believed when it changed."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rince import files
from rince.errors import ConfigError, DataError
from rince.files import file_digest_once, file_digests_once, fingerprint_of, written_folder

PAST = 1_700_000_000_000_000_000


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rince" / "hashes"


@pytest.fixture
def reads(monkeypatch):
    """The files that were read."""
    read: list[str] = []
    plain = files.file_digest
    monkeypatch.setattr(files, "file_digest", lambda path: read.append(path.name) or plain(path))
    return read


def put(path: Path, content: bytes, changed: int = PAST) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, ns=(changed, changed))
    return path


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_fingerprint_is_of_named_facts():
    told = b'{"a":[1,"\\u00e9"],"b":null}'
    assert fingerprint_of(b=None, a=[1, "é"]) == sha(told) == fingerprint_of(a=(1, "é"), b=None)
    assert len({fingerprint_of(a=[1, 2]), fingerprint_of(a=[2, 1]), fingerprint_of(b=[1, 2]), fingerprint_of()}) == 4


def test_a_digest_is_remembered_until_size_or_time_change(tmp_path, reads):
    path = put(tmp_path / "data" / "a.bin", b"one")
    assert [file_digest_once(path) for _ in range(3)] == [sha(b"one")] * 3
    assert reads == ["a.bin"]
    put(path, b"two", PAST + 1)  # of the same size
    assert file_digest_once(path) == sha(b"two")
    put(path, b"three", PAST + 1)  # at the same time
    assert file_digest_once(path) == sha(b"three")
    other = put(tmp_path / "data" / "b.bin", b"three", PAST + 1)
    assert file_digest_once(path) == sha(b"three")
    put(path, b"tiger", PAST + 1)  # written again, its time put back
    assert file_digest_once(path) == sha(b"tiger")
    os.replace(other, path)  # another file of that size and time
    assert file_digest_once(path) == sha(b"three")
    put(path, b"three", PAST + 2)  # touched
    assert file_digest_once(path) == sha(b"three")
    assert len(reads) == 6


def test_a_file_that_was_just_written_is_not_trusted_to_stay(tmp_path, reads):
    path = tmp_path / "fresh.bin"
    path.write_bytes(b"one")
    state = path.stat().st_mtime_ns
    assert file_digest_once(path) == sha(b"one")
    path.write_bytes(b"two")
    os.utime(path, ns=(state, state))  # a clock that is too coarse to tell the two
    assert file_digest_once(path) == sha(b"two")
    assert reads == ["fresh.bin"] * 2


def test_many_files_in_any_order_have_one_book(tmp_path, cache, reads):
    made = [put(tmp_path / "data" / f"{n % 3}/{n}.bin", bytes([n])) for n in range(20)]
    elsewhere = put(tmp_path / "other" / "0" / "0.bin", b"elsewhere")
    told = []
    found = file_digests_once([*made, elsewhere, made[0]], tmp_path / "data", lambda *now: told.append(now))
    assert found == [sha(bytes([n])) for n in range(20)] + [sha(b"elsewhere"), sha(b"\0")]
    assert told == [(n, 21) for n in range(1, 22)]
    assert file_digests_once(made[::-1], tmp_path / "data", lambda *_: pytest.fail("nothing to read")) == found[19::-1]
    assert len(reads) == 21
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"a.bin": 3}', b'{"a.bin": [3, 1]}', b"\xff\xfe"])
def test_a_damaged_book_is_made_again(tmp_path, cache, reads, content):
    path = put(tmp_path / "a.bin", b"one")
    file_digest_once(path)
    [book] = cache.iterdir()
    whole = book.read_bytes()
    book.write_bytes(content)
    assert file_digest_once(path) == sha(b"one")
    assert book.read_bytes() == whole
    assert len(reads) == 2


def test_a_cache_that_cannot_be_written_costs_no_more_than_time(tmp_path, monkeypatch):
    path = put(tmp_path / "a.bin", b"one")
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))  # a file, so nothing can be below it
    assert file_digest_once(path) == sha(b"one")


def test_two_who_write_at_once_leave_a_whole_book(tmp_path, cache):
    for n in range(60):
        put(tmp_path / "data" / f"{n}.bin", bytes([n]))
    script = """if True:
        import sys
        from pathlib import Path
        from rince.files import file_digest_once
        for n in map(int, sys.argv[2:]):
            file_digest_once(Path(sys.argv[1]) / f"{n}.bin")
    """
    halves = [map(str, range(start, 60, 2)) for start in (0, 1)]
    writers = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "data"), *half]) for half in halves]
    assert [writer.wait() for writer in writers] == [0, 0]
    [book] = cache.iterdir()  # nothing half-written beside it
    for name, (size, written, *_, digest) in json.loads(book.read_bytes()).items():
        assert (size, written, digest) == (1, PAST, sha(bytes([int(Path(name).stem)])))


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(DataError, match=r"gone\.bin cannot be read: No such file"):
        file_digest_once(tmp_path / "gone.bin")


def test_a_file_that_is_being_written_is_refused(tmp_path, monkeypatch):
    path = put(tmp_path / "a.bin", b"one")
    monkeypatch.setattr(files, "file_digest", lambda path: str(path.write_bytes(b"longer")))
    with pytest.raises(DataError, match=r"a\.bin was written to while it was read"):
        file_digest_once(path)


@pytest.mark.parametrize("before", ["nothing", "an empty folder", "what somebody who was killed left"])
def test_a_folder_is_written_whole(tmp_path, before):
    folder = tmp_path / "deep" / "folder"
    if before != "nothing":
        folder.mkdir(parents=True)
    if before.startswith("what"):
        put(folder / files.WRITING / "old.txt", b"old")
    with written_folder(folder) as new:
        put(new / "a.txt", b"a")
        put(new / "inner" / "b.txt", b"b")
        assert [item.name for item in folder.iterdir()] == [files.WRITING]
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) == ["a.txt", "inner", "inner/b.txt"]


def test_a_folder_that_cannot_be_written_is_named_and_left_alone(tmp_path):
    mine = put(tmp_path / "mine" / "notes.txt", b"mine")
    for folder, message in ((tmp_path / "mine", "is not empty"), (mine, "cannot write .*File exists")):
        with pytest.raises(ConfigError, match=message), written_folder(folder):
            pytest.fail("nothing may be written")
    assert mine.read_bytes() == b"mine"
    assert list(mine.parent.iterdir()) == [mine]
