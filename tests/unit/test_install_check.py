"""What `make install-check` tries in fresh environments is what works in this one."""

import importlib.util
import shlex
from pathlib import Path

import pytest
import typer.main

from rince.cli import app
from rince.config import load_recipe, recipe_names

SCRIPT = Path(__file__).parents[2] / "scripts" / "install_check.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("install_check", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_library_is_called_as_it_is(script, capsys):
    exec(script.LIBRARY, {})
    assert capsys.readouterr().out.startswith("tensor(")


def test_its_commands_are_those_of_the_command_line(script):
    groups = typer.main.get_command(app).commands
    tried = [shlex.split(command)[1:] for command in script.COMMANDS]
    assert {words[0] for words in tried} == {"--version", *groups}
    for words in tried:
        recipe = next((word for word in words if word in recipe_names()), None)
        if recipe:
            load_recipe(recipe, [word for word in words if "=" in word])


def test_what_it_reads_is_made_before(script, tmp_path, monkeypatch):
    """Photographs, texts and clips, and then the outputs of commands before."""
    monkeypatch.chdir(tmp_path)
    exec(script.PREPARE, {})
    there = {path.name for path in tmp_path.iterdir()}
    assert there == {"photos", "greys", "texts", "clips"}
    for command in script.COMMANDS:
        words = shlex.split(command)
        made = words[words.index("--out") + 1] if "--out" in words else words[-1] if words[1] == "cp" else None
        named = {"run", "mine.yaml", "vectors.parquet", "index.parquet"}.intersection(words[2:]) - {made}
        assert named <= there, command
        there.add(made)


@pytest.mark.parametrize(
    ("code", "said", "outcome"),
    [
        (0, "", "works"),
        (2, 'rince: it needs matplotlib; pip install "rince[report]"', "needs report"),
        (1, 'Traceback …; pip install "rince[report]"', "fails"),
        (2, "rince: there is no encoder called 'efficientnet-lite0'", "fails"),
    ],
)
def test_only_an_extra_excuses_a_command(script, code, said, outcome):
    assert script.outcome_of(code, said) == outcome
