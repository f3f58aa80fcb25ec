"""`rince reproduce`: every row of a table of the paper × seed, trained, evaluated, and put beside the paper's numbers.

Each run is a process of its own, so that one that fails takes no other with it. What is done is skipped, what was
interrupted goes on. The folder:

table.md table.tex table.csv     the table, before and after the head, rewritten after every run; below it the
differences.csv                  differences of rows that it compares
precision-recall.csv, .svg       the precision-recall curves of all rows, mean over seeds
runs/<row>/seed-<n>/             run folders, with seed-<n>.train.log and seed-<n>.evaluate.log beside them
summary/                         what is worth keeping: all of the above that is no run; of every run a small JSON file,
                                 its training log, thinned, and its precision-recall curves; and queries.npz, what
                                 every row does with every test query, mean over seeds: for differences of any two rows

A summary of before (`--kept`) counts: its runs are done, and the new summary holds them too. So a table that takes
days grows on any machine, and only summaries need to be kept.
"""

from rince.reproduce.estimate import estimate
from rince.reproduce.plan import Plan
from rince.reproduce.work import Reproduction

__all__ = ["Plan", "Reproduction", "estimate"]
