"""Writes requirements.lock: the exact version of everything installed beside rince."""

from importlib.metadata import distributions
from pathlib import Path

HEADER = """\
# Exact versions of everything the Makefile installs. Written by `make lock`; ranges are in pyproject.toml.
# On Linux with no GPU build of torch wanted, torch==2.13.0 is found as a CPU wheel where one is offered.
"""
NOT_LOCKED = {"rince", "pip"}


def main() -> None:
    """Local version labels such as +cpu are dropped: they name a build, and one lock serves all builds."""
    found = {d.metadata["Name"].lower().replace("_", "-"): d.version.split("+")[0] for d in distributions()}
    lines = [f"{name}=={version}" for name, version in sorted(found.items()) if name not in NOT_LOCKED]
    path = Path(__file__).parents[1] / "requirements.lock"
    path.write_text(HEADER + "\n".join(lines) + "\n")
    print(f"{path.name}: {len(lines)} packages")


if __name__ == "__main__":
    main()
