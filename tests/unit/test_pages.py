"""The pages that tell a whole story are run top to bottom, each as one program, and print what they say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGES = {"all-of-rince": 25, "extending": 6, "tutorial": 6}  # and how many blocks they have at least
END = "-- end of a block --"
NUMBER = re.compile(r"-?\d+\.\d+")


def text_of(page):
    return (ROOT / "docs" / f"{page}.md").read_text()


def blocks(text):
    """Code and what it is to print; empty where the page shows nothing."""
    return re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", text, flags=re.DOTALL)


def run(parts, folder):
    """What every block prints."""
    (folder / "page.py").write_text("".join(f"{code}\nprint({END!r}, flush=True)\n" for code in parts))
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "page.py"],
        cwd=folder,
        env=os.environ | {"TMPDIR": str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split(f"{END}\n")[:-1]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_prints_what_it_says(page, tmp_path):
    codes, expected = zip(*blocks(text_of(page)), strict=True)
    assert len(codes) >= PAGES[page]
    before = os.times().children_user
    printed = run(codes, tmp_path)
    assert os.times().children_user - before < 60  # as the page promises
    assert len(printed) == len(expected)
    for found, shown in zip(printed, expected, strict=True):
        assert NUMBER.sub("#", found) == NUMBER.sub("#", shown)
        for value, said in zip(NUMBER.findall(found), NUMBER.findall(shown), strict=True):
            digits = len(said.partition(".")[2])  # processors round differently: two units of the last digit
            assert float(value) == pytest.approx(float(said), abs=2.1 * 10**-digits), found


PHOTOGRAPHS = """
import rince
from pathlib import Path
from PIL import Image
from torch import nn

my_network = nn.Sequential(nn.Conv2d(3, 8, 9, stride=8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
for place in ("PHOTOS/train/animal/pug", "PHOTOS/train/plant/oak", "PHOTOS/test/animal/pug", "PHOTOS/test/plant/oak"):
    for number in range(8):
        Path(place).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (140, 130), (200, 30 * number, 0) if "pug" in place else (0, 30 * number, 200)).save(
            f"{place}/{number}.jpg"
        )
Path("OTHER").mkdir()
Image.new("RGB", (140, 130)).save("OTHER/black.jpg")
Image.new("RGB", (140, 130)).save("query.jpg")
"""


def test_the_readmes_lines_of_python_run(tmp_path):
    codes = [code for code, _ in blocks((ROOT / "README.md").read_text()) if "rince.fit(" in code]
    assert len(codes) == 1
    assert codes[0].count("\n") == 5
    quicker = '"train.epochs=2", "schedule.warmup_epochs=0", "train.batch=8"'
    code = codes[0].replace('"train.epochs=50"', quicker)
    assert quicker in code
    printed = run([PHOTOGRAPHS, code], tmp_path)
    assert 0 <= float(printed[1]) <= 1
    assert (tmp_path / "runs" / "mine-page" / "index.html").is_file()
