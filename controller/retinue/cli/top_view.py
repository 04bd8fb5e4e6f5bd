"""From what was read and chosen to the lines of one screen. Pure: no clock, no terminal, no files.

Whatever services say is made harmless here: every text goes through `fit`, which leaves no control character. Every
line is exactly as wide as the screen, and only the rows that fit are formatted.
"""

import re
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

from retinue.cli.top_keys import HELP
from retinue.cli.top_rows import Row, divide_height, find_index, find_window, get_key
from retinue.cli.top_sight import NODES, SERVICES, Choice, Sight
from retinue.cli.top_tables import (
    Columns,
    build_node_cells,
    build_node_columns,
    build_row_cells,
    build_service_columns,
    count_states,
)
from retinue.journal.events import escape_controls, render_event
from retinue.journal.status import Status, describe_age, find_journal_trouble
from retinue.terms.record import Record, replace

STALLED_S = 3.0
"""A round of reading that takes longer is said; the screen goes on."""
ALERTS = 3
PLAIN_EVENTS = 10
NARROWEST = 20
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Line(Record, frozen=True):
    """One line of the screen."""

    text: str
    style: str = ""
    """`title` | `head` | `good` | `warn` | `bad` | `dim` | `selected`, or empty."""


class Scene(Record, frozen=True):
    """Everything one screen is made of."""

    sight: Sight
    choice: Choice
    rows: Sequence[Row]
    """Services and replicas, in their order."""
    now_s: float = 0.0
    """On the clock of `sight.read_s`."""
    stalled_s: float = 0.0
    """How long the present round of reading takes already."""

    @property
    def age_s(self) -> float:
        return self.sight.age_s + max(0.0, self.now_s - self.sight.read_s)

    @property
    def is_over(self) -> bool:
        """No time passes for the run any more: it ended, or is dead."""
        sight = self.sight
        return bool(sight.verdict or sight.death or (sight.status and sight.status.phase == "over"))

    @property
    def now_utc(self) -> float:
        """By the run's clock; of one that is over, its end or its last snapshot."""
        sight = self.sight
        if sight.verdict is not None:
            return sight.verdict.ended_utc
        updated_utc = sight.status.updated_utc if sight.status else 0.0
        return updated_utc if self.is_over else updated_utc + self.age_s


def fit(text: str, width: int) -> str:
    """Make a text exactly that many columns wide, and harmless to a terminal."""
    text = escape_controls(text[: width + 1])
    if cell_len(text) > width:
        text = set_cell_size(text, max(0, width - 3)) + "..."[: max(0, width)]
    return set_cell_size(text, width)


def compose(scene: Scene, width: int, height: int) -> list[Line]:
    """Compose one screen: exactly `height` lines of `width` columns."""
    width = max(NARROWEST, width)
    head = [*_build_head(scene, width), *_build_alerts(scene)[:ALERTS]]
    room = max(0, height - len(head) - 1)
    if scene.choice.shows_help:
        body = [Line(f"  {keys:<28} {what}") for keys, what in HELP]
    elif scene.choice.focus:
        body = _build_log(scene, width, room)
    else:
        body = _build_body(scene, width, room)
    body = [*body[:room], *[Line("")] * (room - len(body))]
    lines = [*head, *body, _build_foot(scene.choice, width)]
    return [replace(line, text=fit(line.text, width)) for line in lines[:height]]


def compose_plain(scene: Scene, width: int) -> list[str]:
    """Compose everything there is to tell, as text without any style, for pipes and files."""
    width = max(NARROWEST, width)
    nodes = scene.sight.status.nodes if scene.sight.status else ()
    lines = [*_build_head(scene, width), *_build_alerts(scene)]
    lines += _build_services(scene, width, len(scene.rows), is_marked=False)
    lines += [Line(""), *_build_nodes(scene, width, len(nodes), is_marked=False)]
    lines += [Line(""), *_build_events(scene, PLAIN_EVENTS)]
    return [fit(line.text, width).rstrip() for line in lines]


def _build_body(scene: Scene, width: int, room: int) -> list[Line]:
    nodes = scene.sight.status.nodes if scene.sight.status else ()
    # Three headings.
    sizes = divide_height(max(1, room - 3), len(scene.rows), len(nodes), scene.choice.pane == NODES)
    return [
        *_build_services(scene, width, sizes[0]),
        *_build_nodes(scene, width, sizes[1]),
        *_build_events(scene, sizes[2]),
    ]


def _build_head(scene: Scene, width: int) -> list[Line]:
    status = scene.sight.status
    if status is None:
        return [Line(f"retinue  {scene.sight.place}", "title"), Line("no snapshot yet: the run is about to begin")]
    left = "" if scene.is_over else f"  {_describe_left(status, scene.now_utc)}"
    up = f"{'was up' if scene.is_over else 'up'} {format_span(scene.now_utc - status.started_utc)}{left}"
    second = [
        f"trainer {_describe_trainer(status)}",
        f"nodes {count_states(status.nodes)}",
        f"gateway port {status.gateway_port}" if status.gateway_port else "no gateway yet",
        f"controller pid {status.controller_pid}, start {status.controller_starts}",
    ]
    return [Line(_build_title(status, width - len(up) - 2) + up, "title"), Line("   ".join(second))]


def _build_title(status: Status, room: int) -> str:
    """As much of it as leaves the times visible, and the gap before them."""
    name = fit(status.name, min(cell_len(status.name), 24)).rstrip()
    tail = f"attempt {status.attempt}  {status.phase}"
    for title in (f"retinue  {name} ({status.run_id})  {tail}", f"{name} ({status.run_id})  {tail}", f"{name}  {tail}"):
        if cell_len(title) <= room:
            break
    return fit(title, room) + "  "


def _describe_left(status: Status, now_utc: float) -> str:
    return "no deadline" if status.end_utc is None else f"left {format_span(status.end_utc - now_utc)}"


def _describe_trainer(status: Status) -> str:
    trainer = status.trainer
    if trainer.state == "running":
        return f"running (pid {trainer.pid})"
    if trainer.signal is not None:
        return f"ended by signal {trainer.signal}"
    return trainer.state if trainer.code is None else f"ended with exit code {trainer.code}"


def format_span(span_s: float) -> str:
    """`01:23:45`, with days before it where there are any."""
    total = max(0, int(span_s))
    days = f"{total // 86400}d " if total >= 86400 else ""
    return f"{days}{total // 3600 % 24:02}:{total // 60 % 60:02}:{total % 60:02}"


def _build_alerts(scene: Scene) -> list[Line]:
    """What is wrong, or over; the most important first."""
    sight, status = scene.sight, scene.sight.status
    found = []
    if scene.stalled_s >= STALLED_S:
        found.append(Line(f"the run directory has not answered for {scene.stalled_s:.0f} s", "bad"))
    if sight.trouble:
        found.append(Line(sight.trouble, "bad"))
    if sight.verdict is not None:
        verdict = sight.verdict
        style = "good" if verdict.exit_code == 0 and verdict.clean == "true" else "bad"
        told = f"exit code {verdict.exit_code}, clean {verdict.clean}"
        return [*found, Line(f"over: {verdict.ended_by}: {verdict.cause} ({told})", style)]
    if sight.death:
        found.append(Line(sight.death, "bad"))
    if status is None:
        return found
    if status.ended_by:
        found.append(Line(f"ending: {status.ended_by}: {status.cause}", "warn"))
    if age := describe_age(scene.age_s):
        found.append(Line(age, "warn"))
    return found + [Line(f"warning: {text}", "warn") for text in (*find_journal_trouble(status), *status.warnings)]


def _build_services(scene: Scene, width: int, size: int, is_marked: bool = True) -> list[Line]:
    """The heading, and as many rows as `size`."""
    keys = [get_key(row) for row in scene.rows]
    selected = find_index(keys, scene.choice.service)
    first, end = find_window(selected, len(keys), size)
    is_active = is_marked and scene.choice.pane == SERVICES
    columns = build_service_columns(scene.sight.status, width)
    lines = [_build_heading(columns, end - first, len(keys))]
    for index in range(first, end):
        cells, style = build_row_cells(scene.rows[index], scene.now_utc)
        lines.append(_build_row(columns, cells, style, is_active and index == selected))
    return lines


def _build_nodes(scene: Scene, width: int, size: int, is_marked: bool = True) -> list[Line]:
    nodes = scene.sight.status.nodes if scene.sight.status else ()
    selected = find_index([node.name for node in nodes], scene.choice.node)
    first, end = find_window(selected, len(nodes), size)
    is_active = is_marked and scene.choice.pane == NODES
    columns = build_node_columns(nodes, width)
    lines = [_build_heading(columns, end - first, len(nodes))]
    for index in range(first, end):
        cells, style = build_node_cells(nodes[index])
        lines.append(_build_row(columns, cells, style, is_active and index == selected))
    return lines


def _build_heading(columns: Columns, shown: int, count: int) -> Line:
    cells = {name: name.upper() for name, _, _ in columns}
    if shown < count:
        cells[columns[-1][0]] += f"  ({shown} of {count})"
    return Line(_join(columns, cells, "  "), "head")


def _build_row(columns: Columns, cells: dict[str, str], style: str, is_selected: bool) -> Line:
    return Line(_join(columns, cells, "> " if is_selected else "  "), "selected" if is_selected else style)


def _join(columns: Columns, cells: dict[str, str], mark: str) -> str:
    parts = []
    for name, width, is_number in columns:
        text = fit(cells.get(name, ""), width)
        # Numbers stand right; what they are made of is one column wide.
        parts.append(text.rstrip().rjust(width) if is_number else text)
    return mark + " ".join(parts)


def _build_events(scene: Scene, size: int) -> list[Line]:
    events = scene.sight.events[-size:] if size else ()
    return [
        Line("  LATEST EVENTS", "head"),
        *(Line("  " + render_event(replace(event, detail=""))) for event in events),
    ]


def _build_log(scene: Scene, width: int, room: int) -> list[Line]:
    focus, log = scene.choice.focus, scene.sight.log
    columns = build_service_columns(scene.sight.status, width)
    lines = [_build_heading(columns, 1, 1)]
    status = scene.sight.status
    of_focus: list[Row] = [row for row in (status.services if status else ()) if row.name == focus]
    of_focus += [row for row in (status.replicas if status else ()) if row.id == focus]
    for row in of_focus[:1]:
        lines.append(_build_row(columns, *build_row_cells(row, scene.now_utc), is_selected=False))
        lines.append(Line(f"last: {row.reason}"))
    if log is None or log.target != focus:
        return [*lines, Line(f"log of {focus}: reading", "head")]
    lines.append(Line(f"log of {focus}  {log.note}", "head"))
    rows = log.lines[-max(0, room - len(lines)) :] if room > len(lines) else ()
    return lines + [Line(COLOURS.sub("", text[: 8 * width]).expandtabs(8)) for text in rows]


def _build_foot(choice: Choice, width: int) -> Line:
    if choice.asks:
        return Line(f"restart {choice.asks}? its present incarnations are stopped.  y yes, any other key no", "warn")
    if choice.said:
        return Line(choice.said, "warn")
    if choice.shows_help:
        return Line("any key goes back", "dim")
    if choice.focus:
        return Line("esc back  r restart  q quit  ? help", "dim")
    other = NODES if choice.pane == SERVICES else SERVICES
    return Line(f"q quit  ? help  enter log  r restart  s sort: {choice.sort}  a all/unready  tab {other}", "dim")
