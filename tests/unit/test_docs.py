"""Every command in README and docs is one the command line takes, every example prints what it says."""

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

import rince
from rince.cli import app
from rince.config import load_recipe, recipe_names
from train.forked import Forked, two_forked

ROOT = Path(__file__).parents[2]
STORIES = ("all-of-rince", "extending", "tutorial")
INDEX = "photos.parquet"
SEVERAL = "init_process_group"  # what torchrun starts, as processes that have done nothing before
# Not among the development packages: with it comes torchmetrics, which Fabric then imports, and with that transformers,
# two seconds more for every command. Where it is installed, its example is run.
LIGHTNING = "pytorch_lightning"
# In one process, since most of the time would go into imports; each example has names of its own.
ONE_BY_ONE = """
import json, sys
for code in json.load(sys.stdin):
    exec(code, {"__name__": "__main__"})
    print("=end=", flush=True)
"""
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)


def commands():
    for page in PAGES:
        for block in blocks(page, "bash"):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("rince "):
                    yield pytest.param(shlex.split(line, comments=True), id=f"{page.name}: {line[:60]}")


def test_there_are_commands_on_many_pages():
    found = list(commands())
    assert len(found) >= 17
    assert len({param.id.partition(":")[0] for param in found}) >= 4


@pytest.mark.parametrize("words", list(commands()))
def test_a_command_is_one_the_command_line_takes(words):
    command, rest = typer.main.get_command(app), list(words[1:])
    while hasattr(command, "commands"):  # `rince ranks audit` is a group in a group
        assert rest[0] in command.commands
        command, rest = command.commands[rest[0]], rest[1:]
    context = command.make_context("rince", rest)
    assert not context.args
    recipe = context.params.get("recipe")
    if recipe in recipe_names():
        load_recipe(recipe, context.params.get("overrides"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.slow
def test_examples_print_what_they_say(page):
    if page.stem in STORIES:
        pytest.skip("is run as a whole, by test_pages")
    text = page.read_text()
    shown = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, flags=re.DOTALL)
    assert len(shown) == len([code for code in blocks(page, "python") if "rince.fit(" not in code])  # see test_pages
    shown = [(code, output) for code, output in shown if INDEX not in code]  # test_commands runs it, beside that file
    if importlib.util.find_spec(LIGHTNING) is None:
        shown = [(code, output) for code, output in shown if LIGHTNING not in code]
    shown = [(code, output) for code, output in shown if SEVERAL not in code]  # the test below
    if not shown:
        return
    given = json.dumps([code for code, _ in shown])
    command = [sys.executable, "-c", ONE_BY_ONE]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("=end=\n") == [*(output for _, output in shown), ""]


@pytest.mark.slow
def test_the_example_of_several_processes_prints_what_it_says(tmp_path):
    page = (ROOT / "docs" / "integrations.md").read_text()
    shown = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", page, flags=re.DOTALL)
    [(code, output)] = [(code, output) for code, output in shown if SEVERAL in code]
    with (tmp_path / "printed").open("w") as printed:
        two_forked([sys.executable, "-c", code], by=Forked, stdout=printed)
    assert (tmp_path / "printed").read_text() == output


def test_links_between_pages_lead_somewhere():
    links = [
        (page, target)
        for page in PAGES
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text())
        if not target.startswith("http")
    ]
    assert len(links) >= 7
    for page, target in links:
        assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_one_version_stands_everywhere():
    """On the way to a release the changelog says that it is not there yet, and the citation names the one before."""
    project, changelog, citation = (
        (ROOT / name).read_text() for name in ("pyproject.toml", "CHANGELOG.md", "CITATION.cff")
    )
    assert f'version = "{rince.__version__}"' in project.splitlines()
    release, _, on_the_way = rince.__version__.partition(".dev")
    newest = next(line for line in changelog.splitlines() if line.startswith("## "))
    if on_the_way:
        assert newest == f"## {release} (unreleased)"
    else:
        date = re.search(r"^date-released: (.*)$", citation, re.MULTILINE)[1]
        assert newest == f"## {release} - {date}"
        assert f"version: {release}" in citation.splitlines()
