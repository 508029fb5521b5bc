"""Throws at a service what only costs, and looks at what its streams notice of it.

    python -m loadtest.hostile --output loadtest/results/hostile.json

Starts `serve run` of a config (the demo's by default) privately, or uses one that runs (`--url`).
Four free and four constrained streams run without end. Each is checked against its text without
other load. Stretches come by turns: a quiet one, one for each kind of attack, and one with all of
them. Other clients send five bodies of 1 MB at once. They send a prompt of 32k tokens with logprobs
for eight choices. They send a hundred small schemas that are slow to compile, ten at once. They
send each once. If `--relentless` is given, they send it again as soon as it is answered, which is
an overload as well. The figure is the longest gap between two pieces of any stream. Its median over
the stretches with all attacks is compared with its median over the quiet ones. (Logprobs of a
prompt that fits have a stretch of their own and no claim, because prompts may slow streams.)

Fails when that ratio is above `--gap-limit`, or a stream has another text or ends. It fails when
the answer to an attack is neither 200 nor a refusal that names field, limit and value. It fails
when an ordinary schema of 47 KB is refused at the end. Ends with status 1 then.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

import httpx
import yaml

from deployments.config.schema import AppConfig
from loadtest.client.cases import constrained_cases, free_cases
from loadtest.client.http import open_client
from loadtest.client.streams import FaultLoad
from loadtest.client.thread import LoadThread
from loadtest.hostile.attacks import (
    Attack,
    fitting_logprob_requests,
    hostile_schemas,
    large_bodies,
    logprob_requests,
    ordinary_schema,
    refusal_complaint,
)
from loadtest.trial import frame
from loadtest.trial.frame import served_at
from loadtest.trial.watched import streams_running

_STEADY_LIMIT_S = 60.0
_SETTLE_S = 3.0  # after an attack, before a stretch counts as quiet
_ATTACK_TIMEOUT_S = 120.0
_LARGE_AT_ONCE = 5
_SCHEMAS_AT_ONCE = 10
_MAX_COMPLAINTS = 20
_QUIET = "quiet"
_ALL = "all at once"


@dataclass
class Stretch:
    """Some seconds of the streams, quiet or under attack."""

    kind: str
    seconds: float
    longest_gap_s: float
    num_attacks: int


@dataclass(kw_only=True)
class Report(frame.Report):
    """The results of a run so far."""

    stretches: list[Stretch] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)  # "kind: status" -> how many
    attack_s: dict[str, float] = field(default_factory=dict)  # the longest answer of each kind

    def gap_s(self, kind: str) -> float:
        """Median over such stretches of the longest gap, seconds; nan: there were none."""
        gaps = [s.longest_gap_s for s in self.stretches if s.kind == kind]
        return statistics.median(gaps) if gaps else float("nan")

    def ratio(self, kind: str) -> float:
        """Such stretches against the quiet ones."""
        return self.gap_s(kind) / self.gap_s(_QUIET)

    def content(self) -> dict[str, object]:
        """See `frame.Report`."""
        return {
            "longest_gap_s": {kind: round(self.gap_s(kind), 4) for kind in _kinds(self)},
            "ratio_to_quiet": {kind: round(self.ratio(kind), 3) for kind in _kinds(self)},
            "stretches": [asdict(stretch) for stretch in self.stretches],
            "answers": dict(sorted(self.answers.items())),
            "longest_answer_s": {k: round(v, 3) for k, v in sorted(self.attack_s.items())},
            "stream_answers": self.num_answers,
            "violations": self.violations,
            "crash": self.crash,
        }

    def lines(self) -> list[str]:
        """Gaps against the quiet ones."""
        return [f"longest gap, {kind} / {_QUIET}: {self.ratio(kind):.2f}" for kind in _kinds(self)]


@dataclass(frozen=True)
class Wave:
    """Attacks that are sent one after the other, by some clients together."""

    at_once: int
    attacks: Sequence[Attack]


class Attackers:
    """Clients that send attacks, all kinds at a time, between `start` and `stop`.

    Args:
        base_url: of the service.
        waves: the kinds.
        report: gets every answer.
        relentless: begin again when all are answered; else each is sent once.
    """

    def __init__(
        self, base_url: str, waves: Sequence[Wave], report: Report, *, relentless: bool = False
    ) -> None:
        self._base_url = base_url
        self._waves = waves
        self._relentless = relentless
        self._report = report
        self._thread = LoadThread("attackers", self._run, end_limit_s=_ATTACK_TIMEOUT_S + 30)
        self.num_answered = 0

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Let what was sent be answered; see `LoadThread.stop`."""
        self._thread.stop()

    async def _run(self) -> None:
        async with open_client(self._base_url, timeout_s=_ATTACK_TIMEOUT_S) as client:
            clients = []
            for wave in self._waves:
                # Shared: its clients send different ones.
                attacks = itertools.cycle(wave.attacks) if self._relentless else iter(wave.attacks)
                clients += [self._repeat(client, attacks) for _ in range(wave.at_once)]
            await asyncio.gather(*clients)

    async def _repeat(self, client: httpx.AsyncClient, attacks: Iterator[Attack]) -> None:
        for attack in attacks:
            if self._relentless and self._thread.is_stopping:
                return
            await self.send(client, attack)

    async def send(self, client: httpx.AsyncClient, attack: Attack) -> None:
        """Send one attack and check what comes back."""
        began_s = time.monotonic()
        headers = {"content-type": "application/json"}
        try:
            answer = await client.post(attack.path, content=attack.body, headers=headers)
            status, content = answer.status_code, answer.text
        except httpx.HTTPError as error:
            status, content = 0, f"{type(error).__name__}: {error}"
        report, took_s = self._report, time.monotonic() - began_s
        self.num_answered += 1
        report.answers[f"{attack.name}: {status}"] += 1
        report.attack_s[attack.name] = max(report.attack_s.get(attack.name, 0.0), took_s)
        complaint = refusal_complaint(attack, status, content)
        if complaint and len(report.violations) < _MAX_COMPLAINTS:
            report.violations.append(complaint)


def run(arguments: argparse.Namespace, report: Report) -> None:
    """Serve, or use what is served at --url, and attack."""
    with served_at(arguments.url, arguments.config, report) as base_url:
        attack_by_turns(arguments, base_url, report)


def attack_by_turns(arguments: argparse.Namespace, base_url: str, report: Report) -> None:
    """Run streams, and quiet and hostile stretches by turns."""
    config = yaml.safe_load(arguments.config.read_text(encoding="utf-8"))
    args = AppConfig.model_validate(config["applications"][0]["args"])
    model = args.router.model_name
    waves = {
        "large bodies": Wave(_LARGE_AT_ONCE, large_bodies(model, args.router.body_limit_bytes)),
        "logprobs": Wave(1, logprob_requests(model)),
        "schemas": Wave(_SCHEMAS_AT_ONCE, hostile_schemas(model)),
    }
    fitting = Wave(1, fitting_logprob_requests(model, args.target.max_model_len))
    kinds = {kind: [wave] for kind, wave in waves.items()}
    kinds = {_QUIET: [], **kinds, _ALL: list(waves.values()), "logprobs that fit": [fitting]}
    load = FaultLoad(base_url, [*free_cases(4), *constrained_cases(4)])
    with streams_running(load, report):
        if not load.wait_steady(_STEADY_LIMIT_S):
            raise RuntimeError("some stream got nothing")
        for kind, attacks in [*kinds.items()] * arguments.rounds:
            attackers = Attackers(base_url, attacks, report, relentless=arguments.relentless)
            stretch = _stretch(load, kind, attackers, arguments.seconds)
            report.stretches.append(stretch)
            print(_line(stretch), flush=True)
    _ask_ordinary(base_url, model, report)
    if not report.ratio(_ALL) <= arguments.gap_limit:
        report.violations.append(
            f"the longest gap under attack is {report.ratio(_ALL):.2f} times the quiet one, "
            f"the limit is {arguments.gap_limit:g}"
        )


def _stretch(load: FaultLoad, kind: str, attackers: Attackers, seconds: float) -> Stretch:
    time.sleep(_SETTLE_S)
    attackers.start()
    began_s = time.monotonic()
    time.sleep(seconds)
    attackers.stop()  # not before the last answer
    ended_s = time.monotonic()
    gap_s = load.longest_gap(began_s, ended_s)
    return Stretch(kind, ended_s - began_s, gap_s, attackers.num_answered)


def _ask_ordinary(base_url: str, model: str, report: Report) -> None:
    attack = ordinary_schema(model)
    answer = httpx.post(
        base_url + attack.path,
        content=attack.body,
        headers={"content-type": "application/json"},
        timeout=_ATTACK_TIMEOUT_S,
    )
    report.answers[f"{attack.name} of {len(attack.body)} bytes: {answer.status_code}"] += 1
    if answer.status_code != 200:
        report.violations.append(
            f"an ordinary schema is refused afterwards: {answer.status_code}: {answer.text[:300]}"
        )


def _line(stretch: Stretch) -> str:
    return (
        f"{stretch.kind}: {stretch.seconds:.0f} s, {stretch.num_attacks} attacks, "
        f"longest gap {1000 * stretch.longest_gap_s:.0f} ms"
    )


def _kinds(report: Report) -> list[str]:
    return list(dict.fromkeys(stretch.kind for stretch in report.stretches))


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = frame.trial_parser("loadtest.hostile", __doc__)
    parser.add_argument("--url", default="", help="of a service of that config that runs")
    parser.add_argument("--rounds", type=int, default=5, help="stretches of each kind")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a stretch, at least")
    parser.add_argument("--relentless", action="store_true", help="send attacks again and again")
    parser.add_argument("--gap-limit", type=float, default=1.5, help="hostile gap / quiet gap")
    arguments = parser.parse_args(argv)
    if arguments.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {arguments.rounds}")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run it from the command line; the exit status."""
    return frame.run_trial("loadtest.hostile", _parse, run, Report(), argv)


if __name__ == "__main__":
    sys.exit(main())
