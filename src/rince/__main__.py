"""The command line as a program: `rince …`, `python -m rince …`. With torch alone installed it says what it lacks."""

# ruff: noqa: PLC0415 - see above

import sys


def main() -> None:
    """Starts the command line."""
    try:
        from rince.cli import main as start
    except ModuleNotFoundError as error:  # the command line is itself part of an extra
        from rince.extras import how_to_install

        advice = how_to_install(error)
        if not advice:
            raise
        sys.exit(_told(f"rince: the command line is not part of the bare library; {advice}"))
    start()


def _told(text: str) -> int:
    print(text, file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
