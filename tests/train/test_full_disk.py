"""A disk that is full, a file-size limit, a folder that cannot be written: nothing whole is lost, nothing is left over.

The limit is the kernel's own (`RLIMIT_FSIZE`): below our writer, and the same for every library.
"""

import contextlib
import os
import resource
import shutil
from types import SimpleNamespace

import pytest
import torch

from rince import files
from rince.errors import ConfigError, WriteError
from rince.files import check_place, clear_unfinished, write_whole, written_folder, written_whole
from rince.train import loop, state
from rince.train.record import Metrics
from train.test_resume import assert_same
from train.tiny import STEPS, TINY, rince, write_recipe


@contextlib.contextmanager
def files_of_at_most(size):
    """What grows beyond it fails with EFBIG, as ENOSPC does where a disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def limited_while(monkeypatch, first, last, size=2000):
    """The limit holds for those saves of a training whose number lies between two."""
    save, number = state.save_checkpoint, iter(range(10**6))

    def limited(*given):
        with files_of_at_most(size) if first <= next(number) <= last else contextlib.nullcontext():
            save(*given)

    with monkeypatch.context() as patch:
        patch.setattr(state, "save_checkpoint", limited)
        yield


def content_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    rince("train", write_recipe(folder), "--out", folder / "run")
    return folder / "run"


def test_a_save_that_fails_keeps_the_last_and_is_tried_again(tmp_path, whole, monkeypatch):
    run = tmp_path / "run"
    with limited_while(monkeypatch, 2, 4):
        done = rince("train", write_recipe(tmp_path), "--out", run)
    said = "".join(done.stderr.split())
    assert said.count("thenextsavetriesagain") == 3
    assert "step9:cannotwrite" in said
    assert "step6issaved" in said
    assert "Filetoolarge(0." in said  # and what is needed, and free
    assert "areneeded" in said
    assert content_of(run) == content_of(whole)  # and nothing half-written


def test_a_last_save_that_fails_is_a_clear_error_and_the_run_goes_on_from_the_one_before(tmp_path, whole, monkeypatch):
    run = tmp_path / "run"
    with limited_while(monkeypatch, 5, 99):
        done = rince("train", write_recipe(tmp_path), "--out", run, check=False)
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"rince: step {STEPS} could not be saved: cannot write {run}/last.ckpt: File too large")
    assert f"step 15 is saved. Mend this, and go on from there with: rince train --resume {run}" in last
    assert not list(run.glob("*.writing"))
    rince("train", "--resume", run)
    assert content_of(run) == content_of(whole)


def test_a_best_checkpoint_that_fails_is_kept_until_it_can_be_written(tmp_path, monkeypatch):
    data = TINY["data"] | {"validation": 0.2}
    train = TINY["train"] | {"judge_every": 1}
    recipe = write_recipe(tmp_path, data=data, train=train, save={"every_steps": 50})
    rince("train", recipe, "--out", tmp_path / "whole")
    with limited_while(monkeypatch, 0, 0):
        done = rince("train", recipe, "--out", tmp_path / "run")
    assert "best.ckpt" in done.stderr
    one, other = (torch.load(tmp_path / run / "best.ckpt", weights_only=True) for run in ("run", "whole"))
    assert_same(one, other)
    assert content_of(tmp_path / "run").keys() == content_of(tmp_path / "whole").keys()


def test_lines_of_the_log_that_fail_are_written_with_the_next(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl", 0, enabled=True)
    metrics.write({"step": 0})
    with files_of_at_most(15):
        metrics.write({"step": 1})  # torn
        metrics.write({"step": 2})
        with pytest.raises(WriteError, match=r"metrics.jsonl: File too large"):
            metrics.flush()
        assert metrics.position == 36
    metrics.write({"step": 3})
    metrics.flush()
    assert (tmp_path / "metrics.jsonl").read_text() == "".join(f'{{"step": {n}}}\n' for n in range(4))


def test_lines_beyond_the_checkpoint_are_cut(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n{"step": 1}\n{"st')
    with Metrics(path, 12, enabled=True):
        assert path.read_text() == '{"step": 0}\n'


def test_a_log_that_cannot_be_written_is_no_checkpoint(tmp_path, monkeypatch):
    """A checkpoint that says more of its log than there is could not be gone on with."""
    monkeypatch.setattr(Metrics, "flush", lambda _: (_ for _ in ()).throw(WriteError("cannot write metrics.jsonl")))
    done = rince("train", write_recipe(tmp_path), "train.max_steps=4", "--out", tmp_path / "run", check=False)
    assert done.returncode == 2
    assert "nothing is saved yet" in done.stderr
    assert not (tmp_path / "run" / "last.ckpt").exists()


def test_a_start_that_cannot_write_its_recipe_does_not_block_its_folder(tmp_path):
    recipe, run = write_recipe(tmp_path), tmp_path / "run"
    with files_of_at_most(10):
        done = rince("train", recipe, "train.max_steps=3", "--out", run, check=False)
    assert done.returncode == 2
    assert "recipe.yaml: File too large" in done.stderr
    assert "a file may have 0.0 MB at most: ulimit -f" in done.stderr
    assert "free" not in done.stderr
    rince("train", recipe, "train.max_steps=3", "--out", run)


def test_a_disk_without_room_is_told_before_the_first_step(tmp_path, monkeypatch):
    recipe = write_recipe(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=50_000))
    monkeypatch.setattr(loop, "plateau_factor", lambda *_: pytest.fail("a step was made"))
    done = rince("train", recipe, "--out", tmp_path / "run", check=False)
    assert done.returncode == 2
    assert "to save this run as it goes (a checkpoint, and the next beside it) takes 0." in done.stderr
    assert "0.0 MB are free" in done.stderr
    monkeypatch.undo()
    rince("train", recipe, "train.max_steps=3", "--out", tmp_path / "another")
    size = (tmp_path / "another" / "last.ckpt").stat().st_size
    said = float(done.stderr.partition("takes ")[2].split()[0]) * 2**20
    assert 0.5 * 2 * size < said < 1.1 * 2 * size  # the archive itself takes some


def test_what_judging_and_embedding_write_is_told_before_the_work(tmp_path, whole, monkeypatch):
    run = shutil.copytree(whole, tmp_path / "run")
    monkeypatch.setattr("rince.evaluation.trained.embed", lambda *_, **__: pytest.fail("work was done"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=50))
    done = rince("evaluate", run, check=False)
    assert done.returncode == 2
    assert "to keep the features of train takes 0." in done.stderr
    monkeypatch.setattr("rince.evaluation.lookup.embed", lambda *_, **__: pytest.fail("work was done"))
    folder = tmp_path / "a.parquet"
    folder.mkdir()
    (tmp_path / "file").touch()
    for out, why in ((folder, "it is a folder"), (tmp_path / "file" / "v.parquet", "file is no folder")):
        done = rince("embed", run, "fashion", "--split", "test", "--out", out, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert why in done.stderr
    done = rince("ranks", "audit", "demo/rince-in", "--picture", tmp_path, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "it is a folder; name a file in it" in done.stderr


@pytest.mark.parametrize("size", [10, 3000, 30_000])
def test_judging_without_room_keeps_what_was_whole(tmp_path, whole, size):
    run = shutil.copytree(whole, tmp_path / "run")
    rince("evaluate", run)
    before = content_of(run)
    shutil.rmtree(run / "features")
    with files_of_at_most(size):
        done = rince("evaluate", run, check=False)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("rince: cannot write")
    assert not list(run.rglob("*.writing"))
    if size == 10:
        assert content_of(run) == before
    rince("evaluate", run)
    assert content_of(run) == before


def test_an_export_without_room_leaves_nothing(tmp_path, whole):
    for size in (10, 20_000):
        with files_of_at_most(size):
            done = rince("export", whole, "--out", tmp_path / "export", check=False)
        assert done.returncode == 2, done.stderr
        assert "File too large" in done.stderr
        assert not (tmp_path / "export").exists()
    rince("export", whole, "--out", tmp_path / "export")


def killed_after_two_files(one, other, replace=os.replace):
    if one.name == "c":
        raise KeyboardInterrupt
    replace(one, other)


def test_an_export_killed_while_its_files_appear_is_made_again(tmp_path, monkeypatch):
    folder = tmp_path / "out"
    monkeypatch.setattr(files, "_clear_folder", lambda _: None)  # a killed process clears nothing
    monkeypatch.setattr(os, "replace", killed_after_two_files)
    with contextlib.suppress(KeyboardInterrupt), written_folder(folder) as new:
        for name in "cab":
            (new / name).write_text("half")
    monkeypatch.undo()
    assert (folder / files.WRITING / "c").exists()
    with written_folder(folder) as new:
        (new / "a").write_text("whole")
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("a", "whole")]


def test_what_killed_processes_left_is_cleared_and_what_the_living_write_is_not(tmp_path):
    path = tmp_path / "last.ckpt"
    left = [tmp_path / f"last.ckpt{end}" for end in (".writing", ".0123abcd.writing")]
    other = tmp_path / "best.ckpt.0123abcd.writing"
    for stale in (*left, other):
        stale.write_bytes(b"half")
    with written_whole(path) as file:
        assert [item.name for item in tmp_path.iterdir()].count(other.name) == 1
        assert not any(stale.exists() for stale in left)
        file.write(b"whole")
        clear_unfinished(tmp_path)  # another process looks around
        assert not other.exists()
    assert content_of(tmp_path) == {"last.ckpt": b"whole"}


def test_two_who_write_one_file_at_once_tear_nothing(tmp_path):
    path = tmp_path / "file"
    with written_whole(path) as one, written_whole(path) as other:
        one.write(b"one")
        other.write(b"other")
    assert content_of(tmp_path) == {"file": b"one"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_told(tmp_path, whole):
    run = shutil.copytree(whole, tmp_path / "run")
    run.chmod(0o500)
    try:
        for arguments in (["evaluate", run], ["train", "--resume", run]):
            done = rince(*arguments, check=False)
            assert done.returncode == 2
            assert "Permission denied" in done.stderr
    finally:
        run.chmod(0o700)


def test_places_are_looked_at(tmp_path):
    check_place(tmp_path / "new.png")
    for place in (tmp_path, tmp_path / "no" / "x", tmp_path / ".." / ""):
        with pytest.raises(ConfigError, match="cannot write"):
            check_place(place)
    with pytest.raises(WriteError, match="No such file"):
        write_whole(tmp_path / "no" / "x", b"")


def test_a_checkpoint_is_on_the_disk_with_its_log(tmp_path, monkeypatch):
    """After a power cut the log must not be shorter than its checkpoint says, or nothing could go on."""
    events, fsync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: events.append(os.readlink(f"/proc/self/fd/{file}")) or fsync(file))
    monkeypatch.setattr(os, "replace", lambda *given: events.append(f"-> {given[1]}") or replace(*given))
    run = tmp_path / "run"
    rince("train", write_recipe(tmp_path), "train.max_steps=3", "--out", run)
    saved = events.index(f"-> {run / 'last.ckpt'}")
    assert events[saved - 2] == str(run / "metrics.jsonl")
    assert events[saved - 1].startswith(str(run / "last.ckpt."))
    assert (
        torch.load(run / "last.ckpt", weights_only=True)["metrics_position"] == (run / "metrics.jsonl").stat().st_size
    )


def test_a_folder_that_is_whole_is_no_failure_though_something_empty_cannot_be_cleared(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    with written_folder(tmp_path / "out") as new:
        (new / "one").write_text("1")
        monkeypatch.setattr(os, "rmdir", refuse)
    assert (tmp_path / "out" / "one").read_text() == "1"
    assert not list(tmp_path.rglob("*.writing/*"))
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="is not empty"), written_folder(tmp_path / "out"):
        pytest.fail("it holds something whole")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["one"]
