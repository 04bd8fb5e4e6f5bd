"""Asks doctor, in a process of its own, whether sandboxes can be had on this node and how well."""

import asyncio
import sys

from retinue.doctor.judge_files import Layer, choose_layer
from retinue.doctor.judgement import find_refusals
from retinue.doctor.records import Facts, Finding
from retinue.terms.record import DecodeError, from_json

PART = "sandbox"
PROBE_S = 60.0
BUILT_IN = ("runtime",)
"""What the host itself finds out, with a better word for it."""


async def probe_node() -> list[str]:
    """Say what keeps sandboxes from working here, or makes them weaker than promised, a sentence each."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "retinue", "facts",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        output, _ = await asyncio.wait_for(process.communicate(), PROBE_S)
        facts = from_json(output, Facts)
    except (TimeoutError, DecodeError) as error:
        return [f"doctor could not look at this node: {error or 'it took too long'}"]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    problems = [describe_finding(finding) for finding in find_refusals(facts, (PART,)) if finding.probe not in BUILT_IN]
    layer = choose_layer(facts)
    if layer is not None and layer is not Layer.TMPFS:
        problems.append(
            f"sandboxes write to {layer.value} here, which is not served yet: removing image files may fail"
        )
    return problems


def describe_finding(finding: Finding) -> str:
    """Say one finding in a sentence."""
    remedy = f"; {finding.who}: {finding.remedy}" if finding.remedy else ""
    return f"{finding.probe}: {finding.means or finding.saw}{remedy}"
