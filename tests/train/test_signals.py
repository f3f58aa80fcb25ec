"""Whatever asks a run to stop, it ends its step, saves, and goes on to the same bits; a second time it stops at once."""

import csv
import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from rince.train.csv_log import CsvLog
from rince.train.record import METRICS
from train.forked import Forked, rince_forked
from train.test_resume import finish_and_compare, state_of, uninterrupted  # noqa: F401 - a fixture
from train.tiny import STEPS, rince, rince_process, write_recipe


def started(tmp_path, run, *changes, by=rince_forked, **options):
    process = by("train", write_recipe(tmp_path), *changes, "--out", run, **options)
    while not (run / METRICS).exists() or not (run / METRICS).stat().st_size:
        assert process.poll() is None
        time.sleep(0.005)
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])  # SIGINT: test_resume; SIGHUP: below
def test_signals_save_and_say_how_to_go_on(number, tmp_path, uninterrupted):  # noqa: F811
    run = tmp_path / "run"
    process = started(tmp_path, run, stderr=subprocess.PIPE)
    process.send_signal(number)
    _, message = process.communicate()
    assert process.returncode == 130
    assert f"interrupted and saved; go on with: rince train --resume {run}" in message
    assert 0 < state_of(run)["step"] < STEPS
    finish_and_compare(run, uninterrupted)


def test_a_terminal_that_is_closed_saves_though_nothing_can_be_printed(tmp_path, uninterrupted):  # noqa: F811
    run = tmp_path / "run"
    ours, theirs = pty.openpty()
    # Under nohup, processes ignore what a closed terminal sends.
    hears = {"start_new_session": True, "preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)}
    process = started(tmp_path, run, by=rince_process, stdin=theirs, stdout=theirs, stderr=theirs, **hears)
    os.close(theirs)
    os.close(ours)  # what is written there from now on is refused
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 130
    assert 0 < state_of(run)["step"] < STEPS
    finish_and_compare(run, uninterrupted)


def test_nohup_outlives_its_terminal(tmp_path):
    run = tmp_path / "run"
    process = started(tmp_path, run, ignores=[signal.SIGHUP])
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 0
    assert state_of(run)["step"] == STEPS


INTERRUPTED_TWICE = """
import os, signal, sys
from rince.methods.contrast import MomentumContrast
step, made, at = MomentumContrast.step, [], int(sys.argv[1])
def twice(*given, **more):
    made.append(1)
    if len(made) == at:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    return step(*given, **more)
MomentumContrast.step = twice
from rince.cli import main
sys.argv = ["rince", *sys.argv[2:]]
main()
"""


@pytest.mark.parametrize(("at", "told"), [(8, "step 6 is saved: rince train --resume"), (2, "nothing is saved yet")])
def test_a_second_ctrl_c_says_what_was_saved(at, told, tmp_path):
    run = tmp_path / "run"
    arguments = [str(at), "train", str(write_recipe(tmp_path)), "--out", str(run)]
    process = Forked([sys.executable, "-c", INTERRUPTED_TWICE, *arguments], stderr=subprocess.PIPE)
    _, message = process.communicate()
    assert process.returncode == 130
    assert f"rince: stopped at once, in step {at - 1}; {told}" in message
    assert "Traceback" not in message
    assert (run / "last.ckpt").exists() == (at == 8)


def rows_of(run):
    with (run / "csv" / "metrics.csv").open(newline="") as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


def lines_of(run):
    return [json.loads(line) for line in (run / METRICS).read_text().splitlines()]


def test_the_table_of_the_log_loses_no_row_over_a_kill(tmp_path):
    run = tmp_path / "run"
    process = started(tmp_path, run, "log.logger=csv", stderr=subprocess.DEVNULL)
    while len(lines_of(run)) < 5:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(rows_of(run)) >= 4  # there as it goes
    rince("train", "--resume", run)
    assert rows_of(run) == lines_of(run)
    assert len(lines_of(run)) == STEPS / 2


def test_the_table_gets_columns_as_they_come_and_heals(tmp_path):
    log, lines = CsvLog(tmp_path), [{"step": 0, "loss": 1.5}, {"step": 1, "new": 2.0}, {"step": 2, "loss": 3.0}]
    for number in range(len(lines)):
        (tmp_path / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines[: number + 1]))
        if number == 2:  # a row that a full disk has torn
            log._columns = []
            (tmp_path / "csv" / "metrics.csv").write_text("step,lo")
        log.log_metrics({}, number)
        assert rows_of(tmp_path) == lines[: number + 1]
