"""The last words of a run on the terminal: a table of what happened, from the verdict. Pure, standard library only."""

from typing import Any


def build_table(verdict: dict[str, Any], path: str) -> list[str]:
    """Build the lines; a part that the verdict does not have is left out, never made up."""
    took_s = verdict["ended_utc"] - verdict["started_utc"]
    rows = [("ended by", f"{verdict['ended_by']}: {verdict['cause']}")]
    requests = verdict.get("requests")
    if requests:
        rows.append(
            (
                "requests",
                f"{requests['answered']} answered, {requests['held']} held, {requests['retried']} retried, "
                f"{requests['failed']} failed",
            )
        )
    services = verdict.get("services") or {}
    if services:
        counts = ", ".join(f"{name} {service['restarts']}" for name, service in services.items())
        rows.append(("restarts", counts))
    rows += _build_own_restarts(verdict)
    for item in verdict.get("leftovers") or ():
        rows.append(
            ("left over", f"pid {item['pid']} {item['cmd']} (ended)" if not item.get("survived") else str(item))
        )
    if verdict.get("requeue"):
        rows.append(("requeue", str(verdict["requeue"])))
    rows += [("warning", str(text)) for text in verdict.get("warnings") or ()]
    nodes = verdict.get("nodes") or {}
    detail = ", ".join(f"{name} {_describe_node(node)}" for name, node in nodes.items())
    rows.append(("clean", f"{verdict['clean']}" + (f" ({detail})" if detail else "")))
    rows.append(("verdict", path))
    head = f"run {verdict['name']} ({verdict['run_id']}), {took_s:.0f} s, exit code {verdict['exit_code']}"
    return [head, *(f"  {name:<9} {text}" for name, text in rows)]


def _build_own_restarts(verdict: dict[str, Any]) -> list[tuple[str, str]]:
    """Say when parts of retinue itself had to be started again."""
    again = []
    controllers = verdict.get("controller_starts", 1) - 1
    if controllers > 0:
        again.append(f"controller {controllers}")
    again += [f"agent of {node} {n - 1}" for node, n in (verdict.get("agent_starts") or {}).items() if n > 1]
    return [("own", f"started again: {', '.join(again)}")] if again else []


def _describe_node(node: dict[str, Any]) -> str:
    left = f", left {node['left']}" if node.get("left") else ""
    return f"{node.get('clean')} by {node.get('rung') or 'no report'}{left}"
