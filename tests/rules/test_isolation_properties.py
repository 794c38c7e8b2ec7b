"""Whatever arrives, in whatever order: laws that the isolation stage keeps."""

from dataclasses import dataclass, field, replace
from datetime import timedelta

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evidence.decisions import (
    Ack,
    AckStatus,
    Action,
    Cause,
    Command,
    DesiredState,
    Domain,
    RequestAction,
    Status,
    Verdict,
)
from evidence.records import Tick
from rules.desired import LEVELS
from rules.isolation import IsolationState, Output, rebuild, settles, step
from rules.policy import Mode, RecoveryPolicy, Releases, load
from rules.stage import Arrived

from .isolation_stage import T0, Governed, ack, card, node, request, rules, verdict

PARTS = (
    card("gpu1"),
    card("gpu1", "0000:9b:00"),
    card("gpu2"),
    node("gpu1"),
    node("gpu2"),
)
TOPICS = {Verdict: "verdicts", Ack: "isolation.acks", Tick: "verdicts"}
STATUSES = (Status.LOCALIZED,) * 4 + (Status.VICTIM, Status.RECOVERED, Status.SUSPECTED)

#: What happens next: (what, which part or command, a choice, seconds until then).
EVENTS = st.tuples(
    st.sampled_from(
        (
            *("hard", "soft", "soft", "revision", "revision", "ack", "release", "isolate"),
            *("hold", "lift", "resume", "tick", "again"),
        )
    ),
    st.integers(0, 9),
    st.integers(0, 9),
    st.sampled_from((0.0, 0.5, 3.0, 11.0, 70.0, 2000.0)),
)


@dataclass
class World:
    """The stage, all that was sent to it and all that it said."""

    governed: Governed
    state: IsolationState = field(default_factory=rebuild)
    second: float = 0.0
    offsets: dict[str, int] = field(default_factory=dict)
    taken: list[Arrived] = field(default_factory=list)
    told: dict[str, Verdict] = field(default_factory=dict)
    live: dict[str, Command] = field(default_factory=dict)
    sent: dict[str, Command] = field(default_factory=dict)
    states: dict[str, DesiredState] = field(default_factory=dict)

    def send(self, record: msgspec.Struct) -> list[Output]:
        topic = TOPICS.get(type(record), "requests")
        offset = self.offsets.get(topic, -1) + 1
        self.offsets[topic] = offset
        return self.arrive(
            Arrived(topic, record, T0 + timedelta(seconds=self.second), offset=offset)
        )

    def arrive(self, arrived: Arrived) -> list[Output]:
        self.taken.append(arrived)
        self.state, outputs = step(self.state, arrived, self.governed)
        for output in outputs:
            if isinstance(output, Command):
                self._check(output, arrived)
            elif isinstance(output, DesiredState):
                self.states[output.domain_id] = output
                if not output.isolated:
                    self.live.pop(output.domain_id, None)
        return outputs

    def wait(self, seconds: float) -> None:
        """Let time pass; what settles meanwhile is told its time, as it is in the stream."""
        until = self.second + seconds
        while (at := settles(self.state)) is not None:
            second = (at - T0).total_seconds()
            if second > until:
                break
            self.second = max(self.second, second)
            self.send(Tick(id=f"w{len(self.taken)}", at=at))
        self.second = until

    def _check(self, command: Command, arrived: Arrived) -> None:
        if command.id in self.sent:
            assert self.sent[command.id] == command, "sent again unchanged"
            return
        self.sent[command.id] = command
        if command.action is Action.RELEASE:
            assert command.held is None, "a release is never blocked"
            assert command.act_by is None
            self.live.pop(command.domain_id, None)
            return
        if command.by == "ringfence":
            last = self.told[command.incident]
            assert last.status is Status.LOCALIZED, "of no victim, and nothing that is over"
            assert last.explained_by is None
        if command.held or command.dry_run:
            return
        before = self.live.get(command.domain_id)
        if before is not None and before.act_by is not None and before.act_by > arrived.at:
            assert before.generation < command.generation or (
                LEVELS.index(before.level) < LEVELS.index(command.level)
            ), "a second isolate of one generation is a harder one"
        self.live[command.domain_id] = command

    def happen(self, what: str, which: int, choice: int) -> None:
        at = T0 + timedelta(seconds=self.second)
        match what:
            case "hard" | "soft":
                incident = f"inc-{len(self.taken)}"
                cause = (Cause.GPU_LOST, Cause.GPU_DEGRADED, Cause.NODE)[choice % 3]
                one = verdict(
                    PARTS[which % len(PARTS)],
                    incident,
                    at=at,
                    cause=cause,
                    hard=what == "hard",
                )
                self.told[incident] = one
                self.send(one)
            case "revision" if self.told:
                incident = list(self.told)[which % len(self.told)]
                known = self.told[incident]
                changed = msgspec.structs.replace(
                    known,
                    revision=known.revision + 1,
                    status=STATUSES[choice % len(STATUSES)],
                    explained_by="window" if choice == len(STATUSES) else None,
                )
                self.told[incident] = changed
                self.send(changed)
            case "ack" if self.sent:
                command = list(self.sent.values())[which % len(self.sent)]
                status = tuple(AckStatus)[choice % len(AckStatus)]
                self.send(ack(command, status))
                if status is AckStatus.EXPIRED and self.live.get(command.domain_id) == command:
                    del self.live[command.domain_id]  # by a clock that is ahead: it was not done
            case "release" | "isolate" | "hold" | "lift" | "resume":
                self.ask(RequestAction(what), PARTS[which % len(PARTS)])
            case "again" if self.taken:
                before, known_state = self.state, msgspec.json.encode(self.state)
                assert self.arrive(self.taken[which % len(self.taken)]) == []
                assert self.state is before
                assert msgspec.json.encode(before) == known_state
            case _:
                self.send(Tick(id=f"t{len(self.taken)}", at=at))

    def ask(self, action: RequestAction, domain: Domain) -> None:
        outputs = self.send(request(action, domain, id=f"r{len(self.taken)}"))
        if action is RequestAction.RELEASE:
            released = [one for one in outputs if isinstance(one, Command)]
            assert any(one.action is Action.RELEASE for one in released)
            part = self.state.parts[self.state.names.get(domain.id, domain.id)]
            assert not part.holds
            assert part.held is None


AT_ONCE = RecoveryPolicy(Releases.AUTOMATIC, 0.0)
GOVERNED = {
    "tight": rules(),
    "roomy": rules(budget=replace(load().budget, node_absolute=9.0), recovery=AT_ONCE),
    "shadow": rules(mode=Mode.SHADOW),
    "clean": rules(
        budget=replace(load().budget, node_absolute=9.0),
        recovery=RecoveryPolicy(Releases.AUTOMATIC, 60.0),
        widening=replace(load().widening, common_nodes=2),
    ),
}


def run(events: list[tuple[str, int, int, float]], governed: Governed) -> World:
    world = World(governed)
    for what, which, choice, later in events:
        world.wait(later)
        world.happen(what, which, choice)
    return world


@given(st.lists(EVENTS, min_size=25, max_size=60), st.sampled_from(sorted(GOVERNED)))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_interleaving_breaks_a_law(
    events: list[tuple[str, int, int, float]], which: str
) -> None:
    world = run(events, GOVERNED[which])
    kept = msgspec.json.decode(msgspec.json.encode(world.state), type=IsolationState)
    assert kept == world.state


@given(st.lists(EVENTS, min_size=15, max_size=40), st.lists(EVENTS, min_size=5, max_size=15))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_state_read_back_from_its_table_has_the_same_future(
    events: list[tuple[str, int, int, float]], then: list[tuple[str, int, int, float]]
) -> None:
    one = run(events, GOVERNED["tight"])
    other = replace(
        one,
        state=msgspec.json.decode(msgspec.json.encode(one.state), type=IsolationState),
        offsets=dict(one.offsets),
        taken=list(one.taken),
        told=dict(one.told),
        live=dict(one.live),
        sent=dict(one.sent),
        states=dict(one.states),
    )
    for world in (one, other):
        for what, which, choice, later in then:
            world.wait(later)
            world.happen(what, which, choice)
    assert one.sent == other.sent
    assert one.states == other.states


@given(st.lists(EVENTS, min_size=15, max_size=40), st.permutations(range(5)))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_stage_rebuilt_from_the_published_states_isolates_and_releases_as_the_first(
    events: list[tuple[str, int, int, float]], order: list[int]
) -> None:
    """What waits, stands or is held is not published, so it is let settle and go first."""
    world = run(events, GOVERNED["roomy"])
    for later in (12, 100_000):
        world.second += later
        world.send(Tick(id=f"end{later}", at=T0 + timedelta(seconds=world.second)))
    rebuilt = World(GOVERNED["roomy"], state=rebuild(world.states.values()))
    rebuilt.second = world.second
    for number in order:
        old = verdict(PARTS[number], f"old-{number}", at=T0 - timedelta(days=1))
        told = T0 + timedelta(seconds=world.second + 1)
        fresh = verdict(PARTS[number], f"fresh-{number}", at=told)
        assert set(peek(rebuilt, old)) <= set(peek(world, old)), "old evidence counts no more"
        assert peek(rebuilt, fresh) == peek(world, fresh)
        world.second = rebuilt.second = world.second + 5
        for each in (world, rebuilt):
            each.told[fresh.incident] = fresh
            each.send(fresh)
            each.ask(RequestAction.RELEASE, PARTS[number])


def peek(world: World, one: Verdict) -> list[tuple[str, str | None]]:
    """What would be commanded for a verdict, the stage left as it is."""
    arrived = Arrived("verdicts", one, T0 + timedelta(seconds=world.second + 2))
    outputs = step(world.state, arrived, world.governed)[1]
    commands = (out for out in outputs if isinstance(out, Command))
    return [(out.id, out.held) for out in commands if out.incident == one.incident]
