"""Draws docs/path.svg, the picture of the path from a request to streamed text: `python docs/draw_path.py`.

Boxes stand in two processes, the front end and the engine; arrows follow one token. Knows nothing of the code:
tests/test_docs.py checks that the picture is the one that this script draws, and that the folders it names exist.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

PICTURE = Path(__file__).with_name("path.svg")
WIDTH, HEIGHT = 960, 344  # px
BOX_HEIGHT = 46
FRONT_END, ENGINE, SAMPLER = "#e8f0fb", "#fdf1e3", "#fff8ef"
INK, LINE = "#1c2733", "#51606f"


class Box(NamedTuple):
    """A step of the path. title: what it does. where: the folder that does it. x, y: the upper left corner, px."""

    title: str
    where: str
    x: int
    y: int
    width: int


REQUEST = (
    Box("request", "HTTP, JSON", 34, 66, 96),
    Box("check, template, tokenize", "api/ text/", 154, 66, 178),
)
REPLY = (
    Box("events", "api/", 34, 269, 96),
    Box("bytes, characters, stops", "text/", 154, 269, 178),
)
STEP = (
    Box("plan", "engine/", 410, 66, 84),
    Box("draft", "drafting/", 516, 66, 84),
    Box("forward", "runners/", 622, 66, 84),
    Box("sample", "sampling/", 728, 66, 84),
    Box("collect", "engine/", 834, 66, 84),
)
SAMPLING = (
    Box("edit", "penalties, masks", 434, 184, 112),
    Box("prune", "one read", 562, 184, 78),
    Box("refine", "top-k, top-p, …", 656, 184, 104),
    Box("draw, verify", "keyed noise", 776, 184, 118),
)


def picture() -> str:
    """The SVG's text."""
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="13" role="img">',
        "<title>The path of a token: from the request through the engine's step back to streamed text</title>",
        f'<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 0 8 4 0 8z" fill="{LINE}"/></marker></defs>',
        area(0, 0, WIDTH, HEIGHT, "white", ""),
        area(14, 18, 336, HEIGHT - 32, FRONT_END, "front end: HTTP and text, no tensors"),
        area(390, 18, 556, HEIGHT - 32, ENGINE, "engine: one step for all sequences"),
        area(414, 142, 504, 112, SAMPLER, "sampling: logits [rows, vocabulary] → token ids, logprobs"),
    ]
    for boxes in (REQUEST, STEP, SAMPLING):
        out += [arrow(right(a), left(b)) for a, b in pairwise(boxes)]
    out += [
        arrow(left(REPLY[1]), right(REPLY[0])),
        arrow(right(REQUEST[1]), left(STEP[0])),
        label("ZMQ", 371, 80),
        f'<path d="M770 112v30" stroke="{LINE}" stroke-dasharray="3 3"/>',
        f'<path d="M918 89h14v203H332" fill="none" stroke="{LINE}" stroke-width="1.5" marker-end="url(#tip)"/>',
        label("token ids, logprobs", 660, 285),
        label("ZMQ", 371, 285),
        label("next token", 780, 49),
        f'<path d="M876 66V54H452V64" fill="none" stroke="{LINE}" stroke-dasharray="3 3" marker-end="url(#tip)"/>',
    ]
    out += [box for boxes in (REQUEST, REPLY, STEP, SAMPLING) for box in map(drawn, boxes)]
    return "\n".join([*out, "</svg>", ""])


def area(x: int, y: int, width: int, height: int, fill: str, title: str) -> str:
    """A process or a room: a frame with its name at the top."""
    frame = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill}"/>'
    if not title:
        return frame
    return frame + f'<text x="{x + 12}" y="{y + 22}" fill="{INK}" font-weight="600">{title}</text>'


def drawn(box: Box) -> str:
    """A box with its two lines of text."""
    middle = box.x + box.width // 2
    return (
        f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{BOX_HEIGHT}" rx="5" fill="white" '
        f'stroke="{LINE}"/>'
        f'<text x="{middle}" y="{box.y + 20}" text-anchor="middle" fill="{INK}">{box.title}</text>'
        f'<text x="{middle}" y="{box.y + 36}" text-anchor="middle" fill="{LINE}" font-size="11">{box.where}</text>'
    )


def left(box: Box) -> tuple[int, int]:
    return box.x, box.y + BOX_HEIGHT // 2


def right(box: Box) -> tuple[int, int]:
    return box.x + box.width, box.y + BOX_HEIGHT // 2


def arrow(start: tuple[int, int], end: tuple[int, int]) -> str:
    return (
        f'<path d="M{start[0]} {start[1]}L{end[0]} {end[1]}" stroke="{LINE}" stroke-width="1.5" '
        'marker-end="url(#tip)"/>'
    )


def label(text: str, x: int, y: int) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="middle" fill="{LINE}" font-size="11">{text}</text>'


if __name__ == "__main__":
    PICTURE.write_text(picture())
