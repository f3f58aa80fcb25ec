"""`log.logger: csv`: the log of a run as a table, which has the rows of metrics.jsonl, no more and no less."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from rince.errors import WriteError
from rince.files import unwritten, write_whole
from rince.train.record import METRICS


class CsvLog:
    """Follows metrics.jsonl of a run, which is cut back to the last checkpoint when it goes on: `csv/metrics.csv`.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._log, self._path = folder / METRICS, folder / "csv" / "metrics.csv"
        self._columns: list[str] = []  # of the table as it is; none if it has to be written anew
        self._read = 0  # bytes of the log that it has
        self._follow()

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Takes over what the log has got since."""
        del metrics, step  # the log has them
        try:
            self._follow()
        except WriteError:
            self._columns = []  # all of it is written with the next row, or at the end

    def finalize(self, status: str) -> None:
        """Is told that the run is over."""
        try:
            self._follow()
        except WriteError:
            if status == "success":
                raise

    def _follow(self) -> None:
        rows, end = self._rows(self._read)
        columns = list(dict.fromkeys([*self._columns, *(name for row in rows for name in row)]))
        try:
            if self._columns and columns == self._columns:
                if rows:
                    with self._path.open("ab") as file:
                        file.write(_text(rows, columns))
            else:
                rows, end = self._rows(0)
                columns = list(dict.fromkeys(name for row in rows for name in row))
                self._path.parent.mkdir(exist_ok=True)
                write_whole(self._path, _text([dict(zip(columns, columns, strict=True)), *rows], columns))
        except OSError as error:
            raise unwritten(self._path, error) from None
        self._columns, self._read = columns, end

    def _rows(self, start: int) -> tuple[list[dict[str, Any]], int]:
        """Whole lines of the log from a byte on, and the byte after them."""
        try:
            with self._log.open("rb") as file:
                file.seek(start)
                lines = file.read().splitlines(keepends=True)
        except OSError:
            return [], start
        whole = [line for line in lines if line.endswith(b"\n")]
        return [json.loads(line) for line in whole], start + sum(map(len, whole))


def _text(rows: list[dict[str, Any]], columns: list[str]) -> bytes:
    text = io.StringIO()
    csv.DictWriter(text, columns, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
