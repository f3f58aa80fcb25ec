"""One bar at a time: work within other work has a line of it, and leaves none behind."""

import io
from types import SimpleNamespace

from rich.console import Console, Group

from rince import terminal
from rince.terminal import shown_progress
from rince.train.progress import Progress


def test_work_within_work_has_a_line_of_the_same_bar():
    with shown_progress("outer") as tell:
        tell("first", 1, 2)
        (bar,) = terminal._shown
        with shown_progress("inner") as tell_more:
            tell_more("reading", 3, 4)
            assert [(task.description, task.completed, task.total) for task in bar.tasks] == [
                ("first", 1, 2),
                ("inner: reading", 3, 4),
            ]
        assert [task.description for task in bar.tasks] == ["first"]
    assert terminal._shown == []


def test_eighty_columns_hold_the_loss_of_every_rank():
    shown = Progress(SimpleNamespace(name="cifar100/rince-out-in"), None, 98, 98_000, enabled=True)
    terms = {f"term/{rank}": 1.234 for rank in range(1, 6)}
    shown._shown = {"epoch": 122, "loss": 4.567, **terms, "similarity/1": 0.5, "violated/1": 0.1}
    shown._bar.update(shown._task, completed=12_000, values=shown._text(12.34))
    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system=None)
    console.print(Group(*shown._bar.get_renderables()))
    lines = console.file.getvalue().splitlines()
    assert "cifar100/rince-out-in" in lines[0]
    assert "12000/98000" in lines[0]
    assert len(lines) == 2
    assert "loss 4.567" in lines[1]
    assert "ℓ5 1.234" in lines[1]
    assert max(map(len, lines)) <= 80
