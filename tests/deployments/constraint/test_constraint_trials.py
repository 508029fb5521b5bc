"""The queue of trials with a scripted canary and a clock that is turned by hand."""

from __future__ import annotations

from deployments.config.schema import GrammarServiceConfig
from deployments.constraint.pipe import Trial, Tried
from deployments.constraint.trials import SERVED, Trials, Verdict
from deployments.constraint.workers import children_config
from models.protocol.grammars import Loosened
from models.protocol.messages import Grammar

CONFIG = children_config(
    GrammarServiceConfig(compile_cpu_s=1.0, compile_timeout_s=15.0),
    tokenizer_path="none.json",
    vocab_size=640,
    eos_ids=(0,),
)
COSTLY = Tried(outcome="costly", message="it took 1.01 s of CPU time, the limit is 1.00 s")


def grammar(name: str) -> Grammar:
    return Grammar(kind="regex", text=name)


class Scene:
    def __init__(self) -> None:
        self.now = 100.0
        self.sent: list[Trial] = []
        self.is_up = True
        self.verdicts: dict[str, Verdict] = {}
        self.trials = Trials(CONFIG, self._send, lambda: self.now)

    def _send(self, trial: Trial) -> bool:
        if self.is_up:
            self.sent.append(trial)
        return self.is_up

    def ask(self, *names: str) -> None:
        for name in names:

            def then(verdict: Verdict, name: str = name) -> None:
                self.verdicts[name] = verdict

            self.trials.submit(grammar(name), then)

    def answer(self, tried: Tried | None = None) -> str:
        """Answer the trial that runs; the grammar's name."""
        name = self.sent[-1].grammar.text
        self.trials.take(tried or Tried(outcome="compiled"))
        return name

    def refuse(self, name: str) -> None:
        self.ask(name)
        self.answer(COSTLY)
        self.answer(COSTLY)


def test_one_trial_at_a_time_in_order_and_each_grammar_once() -> None:
    scene = Scene()
    scene.ask("a", "b", "a")
    assert [trial.grammar.text for trial in scene.sent] == ["a"]
    assert [scene.answer(), scene.answer()] == ["a", "b"]
    assert scene.verdicts == {"a": SERVED, "b": SERVED}
    assert scene.trials.known(grammar("a")) == SERVED
    assert len(scene.sent) == 2
    assert len(scene.trials) == 0


def test_blame_needs_a_second_trial_with_all_of_the_time() -> None:
    scene = Scene()
    scene.ask("slow")
    scene.answer(COSTLY)
    assert scene.verdicts == {}
    first, second = scene.sent
    assert first.cpu_s < 0.1
    assert second.cpu_s == 1.0
    scene.answer()
    assert scene.verdicts == {"slow": SERVED}


def test_blame_says_what_was_measured_and_is_forgotten_after_minutes() -> None:
    scene = Scene()
    scene.refuse("bad")
    verdict = scene.verdicts["bad"]
    assert verdict.is_client_error
    assert verdict.message.startswith("the pattern is too complex: it took 1.01 s of CPU time")
    assert scene.trials.known(grammar("bad")) == verdict
    scene.now += 301.0
    assert scene.trials.known(grammar("bad")) is None
    scene.ask("bad")
    assert scene.sent[-1].cpu_s == 1.0  # known to be slow: its long trial at once
    scene.answer()
    assert scene.trials.known(grammar("bad")) == SERVED


def test_a_grammar_of_many_bytes_has_more_time() -> None:
    scene = Scene()
    scene.ask("x" * 40_000)
    assert 0.3 < scene.sent[0].cpu_s < 1.0


def test_long_trials_wait_for_short_ones_and_not_for_ever() -> None:
    scene = Scene()
    scene.ask("slow")
    scene.ask(*(f"s{i}" for i in range(20)))
    scene.answer(COSTLY)
    order = [scene.answer() for _ in range(21)]
    assert order.index("slow") == 7  # one short trial of eight was its own


def test_few_wait_for_a_long_trial() -> None:
    scene = Scene()
    names = [f"slow{i}" for i in range(12)]
    scene.ask(*names)
    for _ in range(8):
        scene.answer(COSTLY)
    while len(scene.sent) < 13:
        scene.answer(COSTLY)
    full = [verdict for verdict in scene.verdicts.values() if not verdict.is_client_error]
    assert full
    assert all("which is the limit" in verdict.message for verdict in full)


def test_who_waits_too_long_is_answered() -> None:
    scene = Scene()
    scene.is_up = False  # no canary now
    scene.ask("a")
    scene.trials.check()
    assert scene.verdicts == {}
    scene.now += 15.1
    scene.trials.check()
    assert not scene.verdicts["a"].is_client_error
    assert "15.0 s" in scene.verdicts["a"].message
    assert len(scene.trials) == 0


def test_a_lost_canary_costs_only_the_trial_that_ran() -> None:
    scene = Scene()
    scene.ask("a", "b")
    scene.is_up = False
    scene.trials.lose("ended by SIGKILL")
    assert scene.verdicts == {"a": Verdict("ended by SIGKILL")}
    scene.is_up = True
    scene.trials.go_on()
    assert scene.answer() == "b"
    assert scene.verdicts["b"] == SERVED


def test_the_end_answers_all() -> None:
    scene = Scene()
    scene.ask("a", "b", "c")
    scene.trials.end("the service stops")
    assert set(scene.verdicts) == {"a", "b", "c"}
    assert not any(verdict.is_client_error for verdict in scene.verdicts.values())


def test_one_child_that_ended_is_no_blame_and_two_within_minutes_are() -> None:
    scene = Scene()
    scene.ask("a")
    scene.answer()
    assert not scene.trials.suspect(grammar("a"), "ended by SIGABRT")
    assert scene.trials.known(grammar("a")) is None  # to be tried again
    scene.now += 301.0
    assert not scene.trials.suspect(grammar("a"), "ended by SIGABRT")  # the first is forgotten
    assert scene.trials.suspect(grammar("a"), "ended by SIGABRT")
    verdict = scene.trials.known(grammar("a"))
    assert verdict is not None
    assert "ended by SIGABRT; its memory limit is 512 MB" in verdict.message
    scene.now += 301.0
    assert scene.trials.known(grammar("a")) is None


LOOSE = Grammar(
    kind="lark", text='start: "f" call\ncall: "x" %json {"type": "object"  }', loose=(2,)
)


def test_what_may_be_loosened_becomes_objects_where_it_is_too_costly() -> None:
    scene = Scene()
    told: list[Verdict] = []
    scene.trials.submit(LOOSE, told.append)
    assert scene.sent[0].cpu_s > 0.1  # parts may have to be searched for
    scene.answer(COSTLY)
    scene.answer(COSTLY)
    bare = scene.sent[-1].grammar
    assert bare.text.endswith('%json {"type": "object"}')
    assert told == []
    scene.answer(Tried(outcome="compiled", dropped=bare.dropped))
    assert told[0].message == ""
    assert told[0].grammar is not None
    assert told[0].grammar.is_settled
    assert "1.01 s of CPU time" in told[0].grammar.dropped[0].reason
    form = scene.trials.form(LOOSE)
    assert form.text == bare.text
    assert scene.trials.known(form) == told[0]


def test_what_was_loosened_is_remembered() -> None:
    scene = Scene()
    part = Loosened(line=2, steps=("not",), path="$.not", reason="no")
    told: list[Verdict] = []
    scene.trials.submit(LOOSE, told.append)
    scene.answer(Tried(outcome="compiled", dropped=(part,)))
    known = scene.trials.known(LOOSE)
    assert known == told[0]
    assert known is not None
    assert known.grammar is not None
    assert known.grammar.dropped == (part,)
