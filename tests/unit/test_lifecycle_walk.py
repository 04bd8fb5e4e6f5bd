"""Long random lives in a tiny model of the world, with the invariants stated after every step.

The model keeps what is true (who is alive, what was published, which timers run) and an inbox of what was
said but not yet heard, so that events arrive late, after a stop, after a lost node, after their own timer.
"""

import random
from collections import Counter, deque

import pytest

from retinue.lifecycle.decide import decide
from retinue.lifecycle.moves import find_timers
from retinue.terms.launch import StopSpec
from retinue.terms.record import replace
from retinue.terms.replica import (
    AnyAction,
    AnyEvent,
    CancelTimer,
    DependenciesReady,
    Exhausted,
    Exited,
    Launch,
    LaunchRefused,
    LivenessLost,
    NodeLost,
    Phase,
    PlaceAgain,
    Policy,
    Publish,
    ReadinessChanged,
    Replica,
    RestartAsked,
    RestartPolicy,
    SetTimer,
    Started,
    StartupPassed,
    Stop,
    StopAsked,
    TimerFired,
    Withdraw,
)

POLICIES = (
    Policy(restart=RestartPolicy(limit=2, success=(0,), stable_for_s=40.0), startup_budget_s=60.0, is_movable=True),
    Policy(restart=RestartPolicy(limit=1, stable_for_s=20.0), stop=StopSpec(grace_s=5.0)),
    Policy(restart=RestartPolicy(limit=4, backoff_s=1.0), has_readiness=False, is_movable=True),
    Policy(restart=RestartPolicy(limit=0), has_readiness=False, startup_budget_s=30.0),
)
STEPS = 2500
SEEDS = range(8)


class World:
    """What is true of one replica, whatever the core believes."""

    def __init__(self, policy: Policy, seed: int) -> None:
        self.dice = random.Random(seed)
        self.now_s = 0.0
        self.replica = Replica(id="judge/0", policy=policy)
        self.inbox: deque[AnyEvent] = deque()
        self.ordered: set[int] = set()
        """Launches that the agent has not begun."""
        self.alive: set[int] = set()
        self.passed: set[int] = set()
        """Alive, and past its startup probe."""
        self.stopping: set[int] = set()
        self.owed: set[int] = set()
        """Launched, and its one end not yet said."""
        self.published: set[int] = set()
        self.timers: dict[str, tuple[int, float]] = {}
        self.seen: Counter[str] = Counter()

    # --- one step ------------------------------------------------------------------

    def step(self) -> None:
        self.now_s += self.dice.expovariate(0.3)
        moves = [self.hear] * 4 + [self.fire, self.tick]
        moves += [self.begin] * 3 * bool(self.ordered) + [self.live] * 3 * bool(self.alive)
        self.dice.choice(moves)()
        if self.dice.random() < 0.05:
            self.interfere()

    def hear(self) -> None:
        if self.inbox:
            self.apply(self.inbox.popleft())

    def tick(self) -> None:
        if self.replica.phase is Phase.PENDING:
            self.apply(DependenciesReady(self.replica.incarnation))

    def fire(self) -> None:
        due = [name for name, (_, due_s) in self.timers.items() if due_s <= self.now_s]
        if not due:
            return
        name = self.dice.choice(due)
        number, _ = self.timers.pop(name)
        if name == "stop":
            self.end(number)
        self.inbox.append(TimerFired(number, name))

    def begin(self) -> None:
        number = self.ordered.pop()
        if self.dice.random() < 0.2:
            self.owed.discard(number)
            self.inbox.append(LaunchRefused(number, "no port", retryable=self.dice.random() < 0.8))
            return
        self.alive.add(number)
        self.inbox.append(Started(number))
        if self.replica.policy.startup_budget_s is None:
            self.passed.add(number)

    def live(self) -> None:
        number = next(iter(self.alive))
        roll = self.dice.random()
        if number in self.stopping:
            self.say_end(Exited(number, code=self.dice.choice([0, 1, None]), was_asked=True))
        elif roll < 0.06:
            code = self.dice.choice([0, 1, 1, 1, 3, None])
            self.say_end(Exited(number, code=code, signal=9 if code is None else None))
        elif number not in self.passed:
            self.passed.add(number)
            self.inbox.append(StartupPassed(number))
        elif roll < 0.1:
            self.inbox.append(LivenessLost(number))
        elif self.replica.policy.has_readiness:
            self.inbox.append(ReadinessChanged(number, is_ready=self.dice.random() < 0.7))

    def interfere(self) -> None:
        number = self.replica.incarnation
        match self.dice.randrange(4):
            case 0:
                grace_s = self.dice.choice([None, 0.0, 3.0, 20.0])
                self.apply(StopAsked("asked to end", grace_s))
            case 1:
                self.end(number)
                self.apply(NodeLost(number))
            case 2:
                stale = self.dice.choice([number - 1, number + 1])
                self.apply(self.dice.choice([Exited(stale, code=1), Started(stale), LivenessLost(stale)]))
            case _:
                self.apply(RestartAsked(number))

    def say_end(self, event: Exited) -> None:
        self.end(event.incarnation)
        self.inbox.append(event)

    def end(self, number: int) -> None:
        for group in (self.ordered, self.alive, self.passed, self.stopping, self.owed):
            group.discard(number)

    # --- the core, and what it orders -------------------------------------------------

    def apply(self, event: AnyEvent) -> None:
        before = self.replica
        decision = decide(before, event, self.now_s)
        self.replica = decision.replica
        self.seen[type(event).__name__] += 1
        self.seen[decision.replica.phase.value] += 1
        assert decision.reason
        for action in decision.actions:
            self.act(action, before)
        self.check(before, decision.actions)

    def act(self, action: AnyAction, before: Replica) -> None:
        self.seen[type(action).__name__] += 1
        match action:
            case Launch(incarnation=number):
                assert number == before.incarnation + 1
                assert not self.alive, "a second incarnation is launched beside a living one"
                assert not self.owed, "launched before the last one had ended"
                self.ordered.add(number)
                self.owed.add(number)
            case Stop(incarnation=number):
                is_end_said = any(isinstance(e, Exited | LaunchRefused) for e in self.inbox)
                assert number in self.owed or is_end_said
                self.stopping |= {number} & self.owed
            case Publish(incarnation=number):
                self.published.add(number)
            case Withdraw(incarnation=number):
                self.published.remove(number)
            case SetTimer(incarnation=number, timer=timer, after_s=after_s):
                self.timers[timer] = (number, self.now_s + after_s)
            case CancelTimer(timer=timer):
                self.timers.pop(timer, None)
            case PlaceAgain():
                assert self.replica.phase is Phase.PENDING
            case Exhausted():
                assert self.replica.phase is Phase.FAILED

    def check(self, before: Replica, actions: tuple[AnyAction, ...]) -> None:
        replica, number = self.replica, self.replica.incarnation
        assert len(self.alive) <= 1, "two incarnations are alive"
        assert self.published == ({number} if replica.phase is Phase.READY else set())
        said = {event.timer for event in self.inbox if isinstance(event, TimerFired) and event.incarnation == number}
        assert set(self.timers) <= set(find_timers(replica))
        assert set(find_timers(replica)) - {"stable"} <= set(self.timers) | said, "it would wait for ever"
        assert all(owner == number for owner, _ in self.timers.values())
        if replica.phase.is_terminal or replica.phase in (Phase.PENDING, Phase.BACKOFF):
            assert not self.alive
            assert not self.ordered
            assert not self.owed
        if replica.phase.is_terminal:
            assert not self.timers
        assert replica.restarts == max(number - 1, 0)
        assert replica.failures <= replica.policy.restart.limit + (replica.phase is Phase.FAILED)
        if before.phase.is_terminal and not replica.phase.is_terminal:
            assert replica.failures == 0

    def settle(self) -> None:
        """End the replica for good and let everything that is under way come in."""
        self.apply(StopAsked("the run ends"))
        for _ in range(200):
            self.now_s += 5.0
            for move in (self.begin if self.ordered else self.hear, self.live if self.alive else self.hear):
                move()
            self.hear()
            self.fire()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("policy", range(len(POLICIES)))
def test_a_long_random_life_keeps_every_promise(policy, seed):
    world = World(POLICIES[policy], seed)
    for _ in range(STEPS // len(POLICIES)):
        world.step()
    world.settle()
    assert world.replica.phase.is_terminal
    assert not world.alive
    assert not world.owed
    assert not world.inbox


def test_the_walk_goes_everywhere():
    seen: Counter[str] = Counter()
    for index, policy in enumerate(POLICIES):
        world = World(replace(policy), seed=100 + index)
        for _ in range(STEPS):
            world.step()
        seen += world.seen
    kinds = (Launch, Stop, Publish, Withdraw, SetTimer, CancelTimer, PlaceAgain, Exhausted)
    events = (Started, LaunchRefused, StartupPassed, ReadinessChanged, LivenessLost, Exited, TimerFired, StopAsked)
    wanted = {phase.value for phase in Phase} | {kind.__name__ for kind in (*kinds, *events, RestartAsked, NodeLost)}
    assert {name for name in wanted if seen[name] < 20} == set()
