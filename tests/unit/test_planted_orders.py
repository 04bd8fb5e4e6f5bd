"""What must be true at the very moment an order leaves the controller."""

from typing import Any

from retinue.channel.messages import FromController, LaunchOrder, StopOrder
from retinue.supervise.state import RunPhase, TrainerState
from retinue.terms.replica import Phase
from support.world import Script, World, build_test_plan, service


class Witness(World):
    """Looks at what is saved, and at the trainer, whenever something is ordered."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.launches: list[tuple[int, Phase]] = []
        """What was saved of the replica (incarnation, phase) when its launch left; and so below."""
        self.stops: list[tuple[int, Phase]] = []
        self.stopped_under_trainer: list[str] = []
        self.trainer_state: TrainerState | None = None
        self.was_launch_saved = False

    def _read_saved(self, key: str) -> tuple[int, Phase]:
        seat = self.saved.get(f"replica:{key}")
        return (seat.replica.incarnation, seat.replica.phase) if seat is not None else (0, Phase.PENDING)

    def send(self, node: str, message: FromController) -> None:
        if isinstance(message, LaunchOrder):
            self.launches.append(self._read_saved(message.spec.replica))
        if isinstance(message, StopOrder):
            self.stops.append(self._read_saved(message.replica))
            if self.trainer is not None and self.trainer["running"]:
                self.stopped_under_trainer.append(message.replica)
        super().send(node, message)

    def order(self, order: dict[str, Any]) -> None:
        if order["op"] == "launch":
            self.was_launch_saved = self.saved["run"].is_launched
        if order["op"] == "trainer":
            self.trainer_state = self.saved["run"].trainer
        super().order(order)


def test_what_is_ordered_was_saved_before() -> None:
    # A controller killed between the two is continued by one that knows of the order, and repeats nothing.
    world = Witness(build_test_plan([service("judge", 2)]), scripts={"judge": [Script(exits_s=5.0), Script()]})
    world.start()
    assert world.run_to_end() == 0
    assert world.was_launch_saved
    assert world.trainer_state is TrainerState.ASKED
    assert world.launches == [(1, Phase.STARTING), (1, Phase.STARTING), (2, Phase.STARTING), (2, Phase.STARTING)]
    assert world.stops == [(2, Phase.STOPPING), (2, Phase.STOPPING)]


def test_no_service_is_stopped_while_the_trainer_still_runs() -> None:
    world = Witness(build_test_plan([service("judge", 2)]), trainer_s=None)
    world.trainer_stop_s = 30.0
    world.start()
    world.run_until(lambda: world.run.state.phase is RunPhase.RUNNING)
    world.run_for(1.0)
    world.signal("TERM")
    assert world.run_to_end() == 143
    assert len(world.stops) == 2
    assert world.stopped_under_trainer == []
