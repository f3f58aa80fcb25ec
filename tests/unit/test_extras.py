"""A package that is not there is named together with the extra that brings it."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rince.extras import EXTRA_OF, how_to_install

ROOT = Path(__file__).parents[2]
IMPORTED_AS = {"pillow": "PIL", "pyyaml": "yaml", "scikit-learn": "sklearn"}


def test_every_package_of_an_extra_is_known_by_it():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = {
        IMPORTED_AS.get(name, name.replace("-", "_")): extra
        for extra, packages in extras.items()
        if extra != "dev"
        for name in (re.match(r"[\w-]+", package)[0] for package in packages)
        if name != "rince"
    }
    assert len(wanted) > 15
    assert {name: EXTRA_OF.get(name) for name in wanted} == wanted


def test_what_is_said():
    assert how_to_install(ModuleNotFoundError(name="av.container")) == (
        'this needs the package av.container: pip install "rince[video]"'
    )
    assert how_to_install(ModuleNotFoundError(name="wandb")).endswith("pip install wandb")
    assert how_to_install(ModuleNotFoundError(name="rince.nothing")) == ""


@pytest.mark.slow
@pytest.mark.parametrize("absent", ["typer", "pydantic"])
def test_the_command_line_without_its_packages(absent):
    code = f"import sys; sys.modules[{absent!r}] = None; sys.argv = ['rince', 'ls']; from rince.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f'this needs the package {absent}: pip install "rince[train]"' in done.stderr
    assert "Traceback" not in done.stderr


# Brought by no extra: what a user has who asks for it; huggingface_hub comes with datasets.
OF_OTHERS = {"wandb", "pytorch_metric_learning", "timm", "huggingface_hub"}


def test_whatever_is_imported_is_of_an_extra():
    imported = set()
    for file in (ROOT / "src" / "rince").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(node.module.partition(".")[0])
    assert len(imported) > 50
    assert imported - {*sys.stdlib_module_names, "rince", "torch", *EXTRA_OF} == OF_OTHERS
