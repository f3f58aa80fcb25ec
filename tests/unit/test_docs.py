"""Every command in README and docs is one the command line takes, every example prints what it says."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from rince.cli import app
from rince.config import load_recipe, recipe_names

ROOT = Path(__file__).parents[2]
STORIES = ("all-of-rince", "extending")
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
    for code, output in shown:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
        assert done.stdout == output


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
