"""Draws docs/figures/rooms.svg: which room imports which, from the files themselves.

    python docs/figures/draw_rooms.py
"""

import sys
from collections import Counter
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "unit"))

CELL, LEFT, TOP = 40, 128, 118
INK, MUTED, LINE, FILL = "#1c2330", "#6b7280", "#d5d9e0", "#1f8a80"


def draw() -> str:
    from test_rooms import ORDER, edges

    counts = Counter((room, other) for room, other, _ in edges())
    size = len(ORDER) * CELL
    width, height = LEFT + size + 24, TOP + size + 24
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="14" role="img" '
        'aria-label="Which room imports which: all marks lie below the diagonal">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, room in enumerate(ORDER):
        middle = number * CELL + CELL / 2
        out.append(
            f'<text x="{LEFT - 12}" y="{TOP + middle + 5}" text-anchor="end" fill="{INK}">{escape(room)}</text>'
            f'<text transform="translate({LEFT + middle + 5} {TOP - 12}) rotate(-60)" fill="{INK}">{escape(room)}</text>'
        )
        for column, other in enumerate(ORDER):
            x, y = LEFT + column * CELL, TOP + number * CELL
            count = counts[room, other]
            same = "#eef1f4" if number == column else "none"
            out.append(f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="{same}" stroke="{LINE}"/>')
            if count:
                radius = min(16, 6 + count**0.5)
                out.append(
                    f'<g data-edge="{room} {other}"><title>{room} imports {other}: {count} times</title>'
                    f'<circle cx="{x + CELL / 2}" cy="{y + CELL / 2}" r="{radius:.1f}" fill="{FILL}"/>'
                    f'<text x="{x + CELL / 2}" y="{y + CELL / 2 + 4}" text-anchor="middle" font-size="11" '
                    f'fill="#ffffff">{count}</text></g>'
                )
    out.append(f'<text x="{LEFT}" y="20" fill="{MUTED}">a row imports the columns marked; upwards only</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


if __name__ == "__main__":
    (HERE / "rooms.svg").write_text(draw(), encoding="utf-8")
