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


class Scene:
    """A loop between both; what comes in one turn is one batch."""

    def __init__(
        self,
        engine: CountingEngine | None = None,
        *,
        idle_timeout_s: float = 60.0,
        keep_alive: Callable[[], None] | None = None,
    ) -> None:
        self.engine, self.port = engine or CountingEngine(), ScriptedPort()
        self.loop = EngineLoop(
            self.engine,
            self.port,
            idle_timeout_s=idle_timeout_s,
            clock=self.port.clock,
            keep_alive=keep_alive,
        )

    def turn(self, *arrivals: tuple[object, EngineRequest]) -> None:
        if arrivals:
            self.port.arrivals.append([*arrivals])
        self.loop.tick()

    def turns_until(self, now_s: float) -> None:
        while self.port.now_s < now_s:
            self.loop.tick()


def opening(session_id: str) -> Open:
    return messages.opening(session_id, Sampling(), prompt_len=1)


def propose(session_id: str, base_len: int = 0) -> Propose:
    proposed = messages.proposing(session_id, 1, [1], k=1)
    return msgspec.structs.replace(proposed, base_len=base_len)


def test_all_that_arrived_is_one_step_and_one_send() -> None:
    scene = Scene()
    scene.turn(("p", propose("a")), ("q", propose("b")), ("p", propose("c")))
    assert scene.engine.batches == [3]
    assert [[peer for peer, _ in replies] for replies in scene.port.sent] == [["p", "q", "p"]]


def test_batch_is_formed_until_the_engine_has_enough() -> None:
    scene = Scene(CountingEngine(forming_s=0.5))
    scene.port.arrivals.extend([[("p", propose("a"))], [], [("p", propose("b"))]])
    scene.turn()
    assert scene.engine.batches == [2]


def test_forming_ends_even_when_the_engine_never_has_enough() -> None:
    scene = Scene(CountingEngine(forming_s=0.5))
    scene.turn(("p", propose("a")))
    assert scene.engine.batches == [1]
    assert scene.port.now_s <= 2.0


def test_only_leased_sessions_are_opened() -> None:
    scene = Scene()
    lease_id = scene.loop.leases.grant("a")
    scene.turn(("p", opening("a")), ("p", opening("stranger")))
    assert scene.engine.submitted == [opening("a")]
    scene.loop.release("a", lease_id)
    scene.turn(("p", opening("a")))
    assert scene.engine.closed == ["a"]
    assert scene.engine.submitted == [opening("a")], "a late Open must not bring the session back"


def step_for(scene: Scene, step_s: float) -> str:
    """Make a step that takes so long; returns the refusal at its end."""
    refusals = []

    def take_long() -> None:
        scene.port.now_s += step_s
        refusals.append(scene.loop.refusal())

    scene.engine.on_step = take_long
    scene.turn(("p", propose("a")))
    return refusals[0]


def test_a_leader_whose_step_hangs_admits_nobody() -> None:
    scene = Scene()
    assert step_for(scene, 60.0) == "", "the first may compile kernels"
    for _ in range(150):
        assert step_for(scene, 0.1) == ""
    assert step_for(scene, 1.9) == ""
    assert step_for(scene, 30.0).startswith("one pass takes 30.0 s")
    assert scene.loop.refusal() == "", "it has ended"
    scene.engine.pass_rows = 2048
    assert step_for(scene, 30.0) == "", "a first long prompt is no hang"


def test_close_message_keeps_the_lease() -> None:
    scene = Scene()
    scene.loop.leases.grant("a")
    scene.turn(("p", Close(session_id="a", epoch=1)), ("p", opening("a")))
    assert scene.engine.submitted[-1] == opening("a")


def test_release_of_an_old_lease_leaves_the_new_one() -> None:
    scene = Scene()
    old = scene.loop.leases.grant("a")
    scene.loop.release("a", old)
    scene.loop.leases.grant("a")
    scene.loop.release("a", old)
    scene.turn(("p", opening("a")))
    assert scene.engine.closed == ["a"], "closed once, before the new lease's Open"
    assert scene.engine.submitted == [opening("a")]


def test_a_lessee_that_never_says_anything_is_not_waited_for_long() -> None:
    scene = Scene(idle_timeout_s=600.0)
    for name in ("mute", "quiet"):
        scene.loop.leases.grant(name)
    scene.turn(("p", opening("quiet")))
    scene.turns_until(60.0)
    assert scene.engine.closed == ["mute"]


def test_a_session_the_engine_works_for_is_not_idle() -> None:
    scene = Scene(idle_timeout_s=10.0)
    scene.loop.leases.grant("working")
    scene.engine.working_for = ["working"]
    scene.turns_until(100.0)
    assert scene.engine.closed == []
    scene.engine.working_for = []
    scene.turn()
    scene.turns_until(102.0)
    assert scene.engine.closed == ["working"]


def test_a_long_step_ends_no_lease_whose_message_came_meanwhile() -> None:
    scene = Scene(idle_timeout_s=10.0)
    for name in ("stepping", "writing", "silent"):
        scene.loop.leases.grant(name)

    def long_step() -> None:
        scene.port.now_s += 50.0
        scene.port.arrivals.append([("p", opening("writing"))])

    scene.engine.on_step = long_step
    scene.turn(("p", propose("stepping")))  # its answer counts for the session it answers
    scene.turn()
    assert scene.engine.closed == []
    scene.port.arrivals.append([])
    scene.turn()
    assert scene.engine.closed == ["silent"]


def test_followers_hear_from_every_turn() -> None:
    heard: list[str] = []
    scene = Scene(keep_alive=lambda: heard.append("alive"))
    scene.turn()
    scene.turn(("p", propose("a")))
    assert len(heard) == 2


def test_message_the_engine_chokes_on_fails_alone() -> None:
    scene = Scene()
    scene.turn(("p", propose("bad", base_len=-1)), ("q", propose("good")))
    replies = [pair for sent in scene.port.sent for pair in sent]
    assert replies == [
        ("p", Failed(session_id="bad", seq=1, code="invalid", message="base_len out of range")),
        ("q", NeedOpen(session_id="good", seq=1, epoch=1)),
    ]


def test_the_load_is_looked_at_every_half_second() -> None:
    scene = Scene()
    looks = []
    for _ in range(12):
        scene.port.now_s += 0.25
        scene.turn(("p", propose("a")))
        stats = scene.loop.stats()
        looks.append((stats.looked_at_s, stats.load.num_passes))
    # A look comes before the turn's pass; between two looks the last one stands.
    assert looks[:6] == [(0.0, 0), (0.5, 1), (0.5, 1), (1.0, 3), (1.0, 3), (1.5, 5)]
    scene.port.now_s += 5.0
    scene.turn()
    assert scene.loop.stats().looked_at_s == scene.port.now_s, "an idle loop looks as well"
    assert scene.loop.stats().load.num_passes == 12


def test_stop_ends_the_loop() -> None:
    scene = Scene()
    scene.loop.stop()
    scene.loop.run()
    assert scene.loop.stats().num_steps == 0


def test_a_loop_that_stops_closes_sessions_whose_leases_ended_before() -> None:
    scene = Scene()
    lease_id = scene.loop.leases.grant("a")
    scene.turn(("p", opening("a")))
    scene.loop.release("a", lease_id)
    scene.loop.stop()
    scene.loop.run()
    assert scene.engine.closed == ["a"]
