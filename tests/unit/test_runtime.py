"""What a run runs on, and what is said of it."""

import os

import pytest
from lightning_fabric.utilities.rank_zero import rank_zero_only

from rince.train.runtime import Runtime


@pytest.mark.parametrize(
    ("devices", "cores", "said"),
    [
        (3, 2, "3 processes on 2 cores will wait for each other; --devices 2 is faster\n"),
        (2, 1, "2 processes on 1 core will wait for each other; --devices 1 is faster\n"),
        (2, 2, ""),
        (1, 1, ""),
    ],
)
def test_more_processes_than_cores_are_said(devices, cores, said, monkeypatch, capsys):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    Runtime(devices, accelerator="cpu")
    assert capsys.readouterr().err == said


def test_only_the_first_process_says_it(monkeypatch, capsys):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    second = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "two"}
    for name, value in second.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rank_zero_only, "rank", 0)  # Fabric keeps it: later tests here would log nothing
    Runtime(2, accelerator="cpu")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("precision", "there", "said"),
    [
        ("bf16-mixed", False, "this processor has no bfloat16: train.precision=32-true is faster, and another run\n"),
        ("bf16-mixed", True, ""),
        ("32-true", False, ""),
    ],
)
def test_a_processor_without_bfloat16_is_said(precision, there, said, monkeypatch, capsys):
    monkeypatch.setattr("rince.train.runtime.multiplies_bfloat16", lambda: there)
    Runtime(precision=precision, accelerator="cpu")
    assert capsys.readouterr().err == said
