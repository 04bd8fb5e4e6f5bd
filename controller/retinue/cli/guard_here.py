"""Whether the egress guard can work on the host of a command, as far as it can be told without starting a node."""

from retinue.doctor.bounded import Trials
from retinue.doctor.trials import try_keeper
from retinue.egress.trial import find_known_obstacle
from retinue.plan.records import Plan


def find_guard_obstacle(plan: Plan) -> str:
    """Say why no service of this plan could be guarded here; empty when nothing is known against it, or none is to be.

    Every node finds out for itself when it starts; its answer is in `status` and in the verdict.
    """
    if not any(service.guard == "on" for service in plan.services) or not find_known_obstacle(has_namespace=False):
        return ""
    has_namespace = plan.wants_namespace and Trials().run(try_keeper).is_ok
    return find_known_obstacle(has_namespace)
