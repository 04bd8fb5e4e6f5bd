"""What `doctor` prints: one row a finding, and below it the ways in which nodes differ."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from retinue.doctor.compare import Difference, Row
from retinue.doctor.records import NodeAnswer, State

MARKS = {State.OK: ("ok", "green"), State.FALLBACK: ("fallback", "yellow"), State.REFUSED: ("refused", "bold red")}
NODES_SHOWN = 4
PAGE = "docs/doctor.md"


def build_table(rows: Sequence[Row], node_count: int) -> Table:
    """One row a finding; with several nodes also whose it is, marked where not all of them agree."""
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    table.add_column("probe", no_wrap=True)
    table.add_column("")
    if node_count > 1:
        table.add_column("nodes")
    table.add_column("what was seen")
    table.add_column("what follows, and who can change it")
    for row in rows:
        word, style = MARKS[row.finding.state]
        nodes = [Text(describe_nodes(row.nodes, node_count), style="magenta" if row.differs else "")]
        table.add_row(
            row.finding.probe,
            Text(word, style=style),
            *(nodes if node_count > 1 else []),
            Text(row.finding.saw),
            build_consequence(row),
        )
    return table


def build_consequence(row: Row) -> Text:
    """What is used instead or why it does not work, for which parts, and what to change."""
    finding = row.finding
    if finding.state is State.OK:
        return Text(finding.means)
    text = Text(f"{', '.join(finding.parts)}: {finding.means}")
    if finding.remedy:
        text.append(f"\n{finding.who}: ", style="bold")
        text.append(finding.remedy)
    return text


def build_differences(differences: Sequence[Difference], node_count: int) -> RenderableType:
    """Everything that is not the same on all nodes."""
    table = Table(
        box=None, pad_edge=False, header_style="bold", title="Not the same on all nodes", title_justify="left"
    )
    for name in ("what", "value", "nodes"):
        table.add_column(name)
    for difference in differences:
        for number, (value, nodes) in enumerate(difference.values.items()):
            what = difference.what if number == 0 else ""
            table.add_row(what, Text(value or "-", style="magenta"), describe_nodes(nodes, node_count))
    return table


def build_silent(answers: Sequence[NodeAnswer]) -> RenderableType:
    """The nodes that did not answer, and why."""
    return Group(*(Text(f"{answer.node} did not answer: {answer.error}", style="bold red") for answer in answers))


def build_summary(rows: Sequence[Row]) -> str:
    """`1 refused, 4 with a fallback, 18 ok`, and where to read on."""
    count = {state: sum(row.finding.state is state for row in rows) for state in State}
    text = f"{count[State.REFUSED]} refused, {count[State.FALLBACK]} with a fallback, {count[State.OK]} ok"
    return text if count[State.OK] == len(rows) else f"{text}; {PAGE} has a section on each probe"


def describe_nodes(nodes: Sequence[str], node_count: int) -> str:
    """`all 4`, `n1, n2`, or the first few and how many more."""
    if len(nodes) == node_count:
        return f"all {node_count}" if node_count > 1 else nodes[0]
    more = f" and {len(nodes) - NODES_SHOWN} more" if len(nodes) > NODES_SHOWN else ""
    return ", ".join(nodes[:NODES_SHOWN]) + more
