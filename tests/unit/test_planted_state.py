"""What the controller is about to do is saved first: killed in between, its successor goes on and repeats nothing."""

from typing import Any

from retinue.channel.messages import FromController, LaunchOrder, StopOrder
from retinue.supervise.state import TrainerState
from retinue.terms.replica import Phase
from support.world import Script, World, build_test_plan, service


class Suspicious(World):
    """Looks at what is saved at the very moment an order leaves."""

    sent = 0
    ordered = ""

    def send(self, node: str, message: FromController) -> None:
        if isinstance(message, LaunchOrder):
            saved = self.saved[f"replica:{message.spec.replica}"].replica
            assert (saved.incarnation, saved.phase) == (message.spec.incarnation, Phase.STARTING)
            self.sent += 1
        if isinstance(message, StopOrder):
            saved = self.saved[f"replica:{message.replica}"].replica
            assert (saved.incarnation, saved.phase) == (message.incarnation, Phase.STOPPING)
            self.sent += 1
        super().send(node, message)

    def order(self, order: dict[str, Any]) -> None:
        if order["op"] == "launch":
            assert self.saved["run"].is_launched
        if order["op"] == "trainer":
            assert self.saved["run"].trainer is TrainerState.ASKED
        self.ordered += order["op"] + " "
        super().order(order)


def test_no_order_leaves_before_what_it_is_about_was_saved() -> None:
    world = Suspicious(build_test_plan([service("judge", 2)]), scripts={"judge": [Script(exits_s=5.0), Script()]})
    world.start()
    assert world.run_to_end() == 0
    assert world.ordered.startswith("launch trainer ")
    assert world.sent == 6
