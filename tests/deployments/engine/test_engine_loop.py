from collections import deque
from collections.abc import Callable

import msgspec

from deployments.engine.loop import EngineLoop
from models.engine.load import EngineLoad
from models.protocol.messages import (
    Close,
    EngineReply,
    EngineRequest,
    Failed,
    NeedOpen,
    Open,
    Propose,
    Sampling,
)
from tests.cases import messages


class CountingEngine:
    """Answers each Propose by NeedOpen in the next step; notes what it was told."""

    def __init__(self, forming_s: float = 0.0) -> None:
        self.submitted: list[EngineRequest] = []
        self.closed: list[str] = []
        self.batches: list[int] = []
        self.forming_s = forming_s
        self.pass_rows = 4
        self.working_for: list[str] = []
        self.on_step: Callable[[], None] = lambda: None
        self._waiting: list[tuple[object, Propose]] = []

    def submit(self, message: EngineRequest, reply_to: object) -> None:
        if isinstance(message, Propose):
            if message.base_len < 0:
                raise IndexError("base_len out of range")
            self._waiting.append((reply_to, message))
        self.submitted.append(message)

    def step(self) -> list[tuple[object, EngineReply]]:
        waiting, self._waiting = self._waiting, []
        self.batches.append(len(waiting))
        self.on_step()
        return [
            (reply_to, NeedOpen(session_id=message.session_id, seq=message.seq, epoch=1))
            for reply_to, message in waiting
        ]

    @property
    def has_work(self) -> bool:
        return bool(self._waiting)

    @property
    def num_used_blocks(self) -> int:
        return 7 * len(self._waiting)

    def load(self) -> EngineLoad:
        return EngineLoad(num_passes=len(self.batches))

    def wait_s(self, now: float) -> float:
        return self.forming_s if len(self._waiting) < 2 else 0.0

    def idle_s(self) -> dict[str, float]:
        return dict.fromkeys(self.working_for, 0.0)

    def close(self, session_id: str) -> None:
        self.closed.append(session_id)


class ScriptedPort:
    """Hands out one scripted batch per `receive`; waiting moves the clock."""

    def __init__(self) -> None:
        self.arrivals: deque[list[tuple[object, EngineRequest]]] = deque()
        self.sent: list[list[tuple[object, EngineReply]]] = []
        self.now_s = 0.0

    def clock(self) -> float:
        return self.now_s

    def receive(self, timeout_s: float) -> list[tuple[object, EngineRequest]]:
        if self.arrivals:
            return self.arrivals.popleft()
        self.now_s += timeout_s
        return []

    def send(self, replies: list[tuple[object, EngineReply]]) -> None:
        self.sent.append(replies)

    def wake(self) -> None:
        pass


def make_loop(
    engine: CountingEngine, port: ScriptedPort, idle_timeout_s: float = 60.0
) -> EngineLoop:
    return EngineLoop(engine, port, idle_timeout_s=idle_timeout_s, clock=port.clock)


def opening(session_id: str) -> Open:
    return messages.opening(session_id, Sampling(), prompt_len=1)


def propose(session_id: str, base_len: int = 0) -> Propose:
    proposed = messages.proposing(session_id, 1, [1], k=1)
    return msgspec.structs.replace(proposed, base_len=base_len)


def test_all_that_arrived_is_one_step_and_one_send() -> None:
    engine, port = CountingEngine(), ScriptedPort()
    loop = make_loop(engine, port)
    port.arrivals.append([("p", propose("a")), ("q", propose("b")), ("p", propose("c"))])
    loop.tick()
    assert engine.batches == [3]
    assert [[peer for peer, _ in replies] for replies in port.sent] == [["p", "q", "p"]]


def test_batch_is_formed_until_the_engine_has_enough() -> None:
    engine, port = CountingEngine(forming_s=0.5), ScriptedPort()
    loop = make_loop(engine, port)
    port.arrivals.extend([[("p", propose("a"))], [], [("p", propose("b"))]])
    loop.tick()
    assert engine.batches == [2]


def test_forming_ends_even_when_the_engine_never_has_enough() -> None:
    engine, port = CountingEngine(forming_s=0.5), ScriptedPort()
    loop = make_loop(engine, port)
    port.arrivals.append([("p", propose("a"))])
    loop.tick()
    assert engine.batches == [1]
    assert port.now_s <= 2.0


def test_only_leased_sessions_are_opened() -> None:
    engine, port = CountingEngine(), ScriptedPort()
    loop = make_loop(engine, port)
    lease_id = loop.leases.grant("a")
    port.arrivals.append([("p", opening("a")), ("p", opening("stranger"))])
    loop.tick()
    assert engine.submitted == [opening("a")]
    loop.release("a", lease_id)
    port.arrivals.append([("p", opening("a"))])
    loop.tick()
    assert engine.closed == ["a"]
    assert engine.submitted == [opening("a")], "a late Open must not bring the session back"


def step_for(port: ScriptedPort, loop: EngineLoop, engine: CountingEngine, step_s: float) -> str:
    """Make a step that takes so long; returns the refusal at its end."""
    refusals = []

    def take_long() -> None:
        port.now_s += step_s
        refusals.append(loop.refusal())

    engine.on_step = take_long
    port.arrivals.append([("p", propose("a"))])
    loop.tick()
    return refusals[0]


def test_a_leader_whose_step_hangs_admits_nobody() -> None:
    engine, port = CountingEngine(), ScriptedPort()
    loop = make_loop(engine, port)
    assert step_for(port, loop, engine, 60.0) == "", "the first may compile kernels"
    for _ in range(150):
        assert step_for(port, loop, engine, 0.1) == ""
    assert step_for(port, loop, engine, 1.9) == ""
    assert step_for(port, loop, engine, 30.0).startswith("one pass takes 30.0 s")
    assert loop.refusal() == "", "it has ended"
    engine.pass_rows = 2048
    assert step_for(port, loop, engine, 30.0) == "", "a first long prompt is no hang"


def test_close_message_keeps_the_lease() -> None:
    engine, port = CountingEngine(), ScriptedPort()
    loop = make_loop(engine, port)
    loop.leases.grant("a")
    port.arrivals.append([("p", Close(session_id="a", epoch=1)), ("p", opening("a"))])
    loop.tick()
    assert engine.submitted[-1] == opening("a")


def test_release_of_an_old_lease_leaves_the_new_one() -> None:
    engine, port = CountingEngine(), ScriptedPort()
    loop = make_loop(engine, port)
    old = loop.leases.grant("a")
    loop.release("a", old)
    loop.leases.grant("a")
    loop.release("a", old)
    port.arrivals.append([("p", opening("a"))])
    loop.tick()
    assert engine.closed == ["a"], "closed once, before the new lease's Open"
    assert engine.submitted == [opening("a")]


def test_a_lessee_that_never_says_anything_is_not_waited_for_long() -> None:
    engine, port = CountingEngine(), ScriptedPort()
    loop = make_loop(engine, port, idle_timeout_s=600.0)
    for name in ("mute", "quiet"):
        loop.leases.grant(name)
    port.arrivals.append([("p", opening("quiet"))])
    while port.now_s < 60.0:
        loop.tick()
    assert engine.closed == ["mute"]


def test_a_session_the_engine_works_for_is_not_idle() -> None:
    engine, port = CountingEngine(), ScriptedPort()
    loop = make_loop(engine, port, idle_timeout_s=10.0)
    loop.leases.grant("working")
    engine.working_for = ["working"]
    while port.now_s < 100.0:
        loop.tick()
    assert engine.closed == []
    engine.working_for = []
    loop.tick()
    while port.now_s < 102.0:
        loop.tick()
    assert engine.closed == ["working"]


def test_a_long_step_ends_no_lease_whose_message_came_meanwhile() -> None:
    engine, port = CountingEngine(), ScriptedPort()
    loop = make_loop(engine, port, idle_timeout_s=10.0)
    for name in ("stepping", "writing", "silent"):
        loop.leases.grant(name)

    def long_step() -> None:
        port.now_s += 50.0
        port.arrivals.append([("p", opening("writing"))])

    engine.on_step = long_step
    port.arrivals.append([("p", propose("stepping"))])
    loop.tick()  # the step; its answer counts for the session it answers
    loop.tick()
    assert engine.closed == []
    port.arrivals.append([])
    loop.tick()
    assert engine.closed == ["silent"]


def test_followers_hear_from_every_turn() -> None:
    heard: list[float] = []
    engine, port = CountingEngine(), ScriptedPort()
    loop = EngineLoop(
        engine,
        port,
        idle_timeout_s=60.0,
        clock=port.clock,
        keep_alive=lambda: heard.append(port.now_s),
    )
    loop.tick()
    port.arrivals.append([("p", propose("a"))])
    loop.tick()
    assert len(heard) == 2


def test_message_the_engine_chokes_on_fails_alone() -> None:
    engine, port = CountingEngine(), ScriptedPort()
    loop = make_loop(engine, port)
    port.arrivals.append([("p", propose("bad", base_len=-1)), ("q", propose("good"))])
    loop.tick()
    replies = [pair for sent in port.sent for pair in sent]
    assert replies == [
        ("p", Failed(session_id="bad", seq=1, code="invalid", message="base_len out of range")),
        ("q", NeedOpen(session_id="good", seq=1, epoch=1)),
    ]


def test_the_load_is_looked_at_every_half_second() -> None:
    engine, port = CountingEngine(), ScriptedPort()
    loop = make_loop(engine, port)
    looks = []
    for _ in range(12):
        port.arrivals.append([("p", propose("a"))])
        port.now_s += 0.25
        loop.tick()
        looks.append((loop.stats().looked_at_s, loop.stats().load.num_passes))
    # A look comes before the turn's pass; between two looks the last one stands.
    assert looks[:6] == [(0.0, 0), (0.5, 1), (0.5, 1), (1.0, 3), (1.0, 3), (1.5, 5)]
    port.now_s += 5.0
    loop.tick()
    assert loop.stats().looked_at_s == port.now_s, "an idle loop looks as well"
    assert loop.stats().load.num_passes == 12


def test_stop_ends_the_loop() -> None:
    loop = make_loop(CountingEngine(), ScriptedPort())
    loop.stop()
    loop.run()
    assert loop.stats().num_steps == 0


def test_a_loop_that_stops_closes_sessions_whose_leases_ended_before() -> None:
    engine, port = CountingEngine(), ScriptedPort()
    loop = make_loop(engine, port)
    lease_id = loop.leases.grant("a")
    port.arrivals.append([("p", opening("a"))])
    loop.tick()
    loop.release("a", lease_id)
    loop.stop()
    loop.run()
    assert engine.closed == ["a"]
