"""The command line. Heavy imports happen inside the commands, so that `rince --help` answers at once."""

# ruff: noqa: PLC0415 - see above

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from rince.analysis.commands import app as analyse_app
from rince.cli import judging, recipes, training, using
from rince.cli.words import BAD_INPUT, INTERRUPTED, tell

app = typer.Typer(
    name="rince",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: dict[str, Callable[..., None]] = {
    "ls": recipes.list_recipes,
    "explain": recipes.explain,
    "show": recipes.show,
    "cp": recipes.copy,
    "validate": recipes.validate,
    "train": training.train,
    "evaluate": judging.evaluate,
    "embed": using.embed,
    "neighbours": using.neighbours,
    "index": using.index,
    "predict": using.predict,
    "export": using.export,
    "report": judging.report,
    "reproduce": training.reproduce,
}
for _name, _command in COMMANDS.items():
    app.command(_name)(_command)
ranks_app = typer.Typer(help="Look at ranks before training with them.", no_args_is_help=True)
ranks_app.command("audit")(recipes.audit)
app.add_typer(ranks_app, name="ranks")
app.add_typer(analyse_app, name="analyse")


def _version(asked: bool) -> None:
    if asked:
        import rince

        typer.echo(f"rince {rince.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Contrastive learning from ranked positives.

    Start with: rince train demo/rince-in --out runs/first
    """


def main(run: Callable[[], object] | None = None) -> None:
    """The entry point: errors of ours become one message and exit code 2."""
    from rince.errors import RinceError
    from rince.extras import how_to_install
    from rince.memory import keep_freed_memory

    keep_freed_memory()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as of stderr: names of files need not be UTF-8
    try:
        run() if run else app(prog_name="rince")
    except RinceError as error:
        tell(f"rince: {error}")
        sys.exit(BAD_INPUT)
    except ModuleNotFoundError as error:
        advice = how_to_install(error)
        if not advice:
            raise
        tell(f"rince: {advice}")
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt as error:
        tell(f"rince: {str(error) or 'interrupted; what was written is whole'}")
        sys.exit(INTERRUPTED)
    except OSError as error:  # what the system refuses is no bug of ours
        where = f"{error.filename}: " if error.filename else ""
        if error.errno == errno.ENAMETOOLONG:
            whole, longest = str(error.filename), max(Path(str(error.filename)).parts, key=len)
            where = f"{longest[:60]!r}…, {len(longest)} letters in a path of {len(whole)}: "
        tell(f"rince: the system refuses: {where}{error.strerror or error}")
        sys.exit(BAD_INPUT)
