"""One bar at a time: work within other work has a line of it, and leaves none behind."""

from rince import terminal
from rince.terminal import shown_progress


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
