"""`rince analyse …`. Heavy imports happen inside the commands, so that `rince --help` answers at once."""

# ruff: noqa: PLC0415 - see above

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rince.terminal import shown_progress

if TYPE_CHECKING:
    from rince.analysis.figures import Charted
    from rince.analysis.measure import RunAnalysis

app = typer.Typer(
    help="Why it ranks: trade-offs, equilibria and penalties, and temperatures from them.", no_args_is_help=True
)

Pairs = Annotated[
    list[str] | None,
    typer.Option("--temperatures", help="τ1,τ2 such as 0.1,0.2; repeat for several. By default the paper's."),
]
Number = Annotated[int, typer.Option("--negatives", min=1, max=1_000_000, help="How many negatives.")]
Mean = Annotated[float, typer.Option("--mean", min=-1, max=1, help="Their mean similarity.")]
Spread = Annotated[float, typer.Option("--spread", min=0, max=1, help="Its standard deviation.")]
Out = Annotated[Path, typer.Option(help="Folder to write to.", show_default=False)]
RunFolder = Annotated[Path, typer.Argument(help="Folder of a trained run.", show_default=False)]


@app.command()
def tradeoff(
    out: Out, temperatures: Pairs = None, number: Number = 100, mean: Mean = 0.1, spread: Spread = 0.1
) -> None:
    """Map who wins rank 2 for every pair of similarities: ℓ2, which pulls it closer, or ℓ1, which pushes it away.

    rince analyse tradeoff --out runs/analysis
    rince analyse tradeoff --temperatures 0.1,0.225 --negatives 1000 --out runs/analysis
    """
    from rince.analysis.equilibrium import normal_negatives
    from rince.analysis.figures import PAPER_MAPS, tradeoff_maps, write_charts

    charts = tradeoff_maps(_pairs(temperatures) or PAPER_MAPS, normal_negatives(number, mean, spread))
    _say_written(write_charts(charts, out))


@app.command()
def equilibrium(
    out: Out, temperatures: Pairs = None, number: Number = 100, mean: Mean = 0.1, spread: Spread = 0.1
) -> None:
    """Draw where rank 2 comes to rest for every similarity of rank 1, for several pairs of temperatures.

    rince analyse equilibrium --out runs/analysis
    """
    from rince.analysis.equilibrium import normal_negatives, ranking_starts
    from rince.analysis.figures import PAPER_LINES, equilibrium_lines, write_charts

    pairs, negatives = _pairs(temperatures) or PAPER_LINES, normal_negatives(number, mean, spread)
    written = write_charts([equilibrium_lines(pairs, negatives)], out)
    for one, two in pairs:
        start = ranking_starts((one, two), negatives)
        order = f"rank 1 before rank 2 from h(q, p1) = {start:.2f} on" if start <= 1 else "never in order"
        typer.echo(f"τ1 = {one:g}, τ2 = {two:g}: {order}")
    _say_written(written)


@app.command()
def penalty(
    out: Out,
    temperatures: Annotated[list[float] | None, typer.Option(help="Repeat for several.", show_default=False)] = None,
    number: Number = 100,
    mean: Mean = 0.1,
    spread: Spread = 0.1,
) -> None:
    """Draw how the push of a term is shared among negatives, close or far, at several temperatures.

    rince analyse penalty --out runs/analysis
    """
    from rince.analysis.equilibrium import normal_negatives
    from rince.analysis.figures import PENALTY_TEMPERATURES, penalty_curves, write_charts
    from rince.errors import ConfigError

    chosen = tuple(temperatures or PENALTY_TEMPERATURES)
    if min(chosen) <= 0:
        raise ConfigError(f"temperatures must be positive, got {', '.join(f'{t:g}' for t in chosen)}")
    _say_written(write_charts([penalty_curves(chosen, normal_negatives(number, mean, spread))], out))


@app.command()
def advise(
    run: Annotated[
        Path | None, typer.Argument(help="Folder of a trained run, to measure negatives on.", show_default=False)
    ] = None,
    gap: Annotated[
        list[float] | None,
        typer.Option(
            help="Wanted between the similarities of a rank and the next; repeat for one per step.", show_default=False
        ),
    ] = None,
    ranks: Annotated[int | None, typer.Option(min=2, help="How many; by default 2, or the run's.")] = None,
    closest: Annotated[
        float | None, typer.Option(help="Similarity that rank 1 will reach; by default 0.9, or the run's.")
    ] = None,
    first: Annotated[float | None, typer.Option(help="τ1; by default 0.1, or the run's.")] = None,
    number: Number = 100,
    mean: Mean = 0.1,
    spread: Spread = 0.1,
) -> None:
    """Propose temperatures from the equilibrium, and say what to expect of them.

    rince analyse advise --gap 0.1 --ranks 3
    rince analyse advise runs/first
    rince analyse advise runs/first --gap 0.2
    """
    from dataclasses import replace

    from rince.analysis.advice import advice_text
    from rince.analysis.advice import advise as propose
    from rince.analysis.equilibrium import normal_negatives
    from rince.errors import ConfigError
    from rince.loss import RankTerm

    if run is None and not gap:
        raise ConfigError("say what you want, --gap 0.1, or give a trained run to measure negatives on")
    gaps = None if not gap else gap[0] if len(gap) == 1 else gap
    if run is None:
        terms = (RankTerm(0.1 if first is None else first),) * (ranks or 2)
        advice = propose(0.9 if closest is None else closest, gaps, terms, normal_negatives(number, mean, spread))
    else:
        found = _measured(run, "train")
        if ranks is not None and ranks != len(found.terms):
            raise ConfigError(f"{run} has {len(found.terms)} ranks, not {ranks}; leave out --ranks")
        terms = tuple(replace(term, temperature=first or found.terms[0].temperature) for term in found.terms)
        near = found.ranks[0].after if closest is None else closest
        advice = propose(near, gaps, terms, found.negatives, counts=found.counts, over_positives=found.over_positives)
        if found.at_rest:
            typer.echo(f"{run}: {found.at_rest.text}")
    typer.echo(advice_text(advice))


@app.command("run")
def analyse_run(
    run: RunFolder,
    split: Annotated[Literal["train", "test"], typer.Option(help="Where queries come from.")] = "train",
    out: Annotated[Path | None, typer.Option(help="Folder to write to; by default RUN/analysis.")] = None,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Also measure the checkpoints that save.keep has kept on the way.")
    ] = False,
) -> None:
    """Measure a trained run: similarity of every rank against the predicted equilibrium, violated orders, penalties.

    Of videos: how far frame, shot and video lie, with the views of training and without, where time alone is left.

    rince analyse run runs/first
    """
    from rince.analysis.figures import run_figures, write_charts, write_figures
    from rince.analysis.results import analysis_json, analysis_text
    from rince.files import write_out
    from rince.train.record import recipe_of

    if len(recipe_of(run).own_ranks) > 1:  # clips of a video, whatever their ranks
        _analyse_clips(run, split, out, checkpoints)
        return
    on_the_way = _trajectory(run) if checkpoints else []
    found = _measured(run, split)
    folder = out or run / "analysis"
    typer.echo(analysis_text(found))
    written = [*write_figures(run_figures(found), folder), *write_charts(on_the_way, folder)]
    _say_written([*written, write_out(folder / "analysis.json", analysis_json(found), in_new_folder=True)])


@app.command()
def page(
    out: Annotated[Path, typer.Option(help="HTML file to write.", show_default=False)],
) -> None:
    """Write a page with sliders for temperatures and negatives; map and equilibrium follow at once.

    One file that works from disk and fetches nothing.

    rince analyse page --out runs/analysis/page.html
    """
    from rince.analysis.page import write_page

    _say_written([write_page(out)])


def _measured(run: Path, split: Literal["train", "test"]) -> RunAnalysis:
    from rince.analysis.measure import analyse_run as measure

    with shown_progress(str(run)) as tell:
        return measure(run, split=split, tell=tell)


def _analyse_clips(run: Path, split: Literal["train", "test"], out: Path | None, checkpoints: bool) -> None:
    from rince.analysis.clips import analyse_clips, clips_json, clips_text
    from rince.errors import ConfigError
    from rince.files import write_out

    if checkpoints:
        raise ConfigError(f"--checkpoints is for ranks between classes, and {run} ranks the clips of a video")
    with shown_progress(str(run)) as tell:
        found = analyse_clips(run, split=split, tell=tell)
    typer.echo(clips_text(found))
    file = (out or run / "analysis") / "analysis.json"
    _say_written([write_out(file, clips_json(found), in_new_folder=True)])


def _trajectory(run: Path) -> list[Charted]:
    from rince.analysis.trajectory import chart, trajectory
    from rince.train.record import recipe_of

    with shown_progress(str(run)) as tell:
        return [chart(trajectory(run, tell=tell), recipe_of(run).name)]


def _pairs(texts: list[str] | None) -> list[tuple[float, float]]:
    from rince.errors import ConfigError

    found = []
    for text in texts or []:
        try:
            one, two = (float(part) for part in text.split(","))
        except ValueError:
            raise ConfigError(f"temperatures are two numbers such as 0.1,0.2; got {text!r}") from None
        if not (0 < one < float("inf") and 0 < two < float("inf")):
            raise ConfigError(f"temperatures must be positive, got {text!r}")
        found.append((one, two))
    return found


def _say_written(paths: list[Path]) -> None:
    for path in paths:
        typer.echo(f"wrote {path}")
