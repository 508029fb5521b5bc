"""Simulated users of a served model, for locust.

    locust -f loadtest/locustfile.py --host http://127.0.0.1:8000 --headless -u 8 -r 2 -t 1m \\
        --html report.html --summary summary.json

Users chat, ask for JSON records, share a long prompt, go away in the middle, and send bad requests.
`--shape ramp|spike` varies their number, `--trace FILE` replays arrivals (CSV, columns at_s,kind)
whatever the answers take. The table of locust has the times of requests, the time to the first
token, inter-token latency, tokens/s and acceptance. A second table has k and the drafters (the
draft model, copies of known text, the grammar). It says why if the draft model drafted little.
Wrong answers are failures: JSON that does not parse or obey its schema, or another text for the
same seed. So is a stream without an end. So is a bad request that is not refused by name.

No request comes twice, not even in the next run. Answers are drafted from earlier ones, so a
repeated request would look faster than a new one. `--seed 1` asks the same as another run with that
seed. `--repeat-seeds 64` has 64 of each kind come again and again, and checks that a seed has one
text. The summary holds all figures with seed, machine and versions. An API key is taken from the
environment, OUTRIDER_API_KEY.
"""

from __future__ import annotations

import itertools
import logging
import random
import sys
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import gevent
from locust import HttpUser, LoadTestShape, User, between, events, task
from locust.argument_parser import LocustArgumentParser
from locust.clients import HttpSession
from locust.env import Environment
from locust.exception import StopUser

from loadtest.client.answers import Answer, check_asked
from loadtest.client.http import CHAT, READ_TIMEOUT_S, key_headers
from loadtest.client.shapes import Ramp, Spike, read_trace
from loadtest.client.who_drafted import WhoDrafted
from loadtest.client.workload import MIX, Asking, Request, Workload
from loadtest.report.record import SAMPLES, head, write_json

logger = logging.getLogger(__name__)

_SETTINGS = (
    *(
        "model",
        "seed",
        "repeat_seeds",
        "k",
        "max_tokens",
        "shared_words",
        "think_s",
        "shape",
        "trace",
    ),
    *("num_users", "spawn_rate", "run_time"),
)
_QUESTION = "how long do users wait, and who drafts for them"
_MEASURES = {  # medians in the record, by locust's own names
    "first_ms": "TTFT, ms",
    "gap_ms": "inter-token latency, ms",
    "tokens_per_s": "tokens/s",
}
_PER_WORKER = 10**9  # numbers of requests that one locust process may use
_KINDS = ("chat", "record", "shared", "bad")
_TRACE_END_S = 300.0  # for the last answers of a trace


def _count(text: str) -> int:
    """Return a whole number, 0 or more."""
    if not text.isdecimal():
        raise ArgumentTypeError(f"must be a whole number of at least 0, got {text!r}")
    return int(text)


@events.init_command_line_parser.add_listener
def _add_options(parser: LocustArgumentParser) -> None:
    group = parser.add_argument_group("Outrider")
    group.add_argument("--model", default="outrider-demo", help="name of the served model")
    group.add_argument(
        "--seed", type=int, help="of everything that is asked; left out: drawn, another each run"
    )
    group.add_argument(
        "--repeat-seeds",
        type=_count,
        default=0,
        metavar="N",
        help="ask N requests of each kind again and again, each with its seed; 0: none twice",
    )
    group.add_argument("--k", type=_count, help="fix the draft length; left out: chosen live")
    group.add_argument("--max-tokens", type=int, default=100, help="completion tokens of a chat")
    group.add_argument("--record-max-tokens", type=int, default=400, help="of a JSON record")
    group.add_argument("--shared-words", type=int, default=150, help="words of the shared prompt")
    group.add_argument("--think-s", type=float, default=2.0, help="mean pause of a user, seconds")
    group.add_argument(
        "--any-text",
        action="store_true",
        help="do not expect one text per seed (engines that are not batch-invariant)",
    )
    group.add_argument("--shape", choices=["constant", "ramp", "spike"], default="constant")
    group.add_argument("--shape-s", type=float, default=60.0, help="length of ramp or spike")
    group.add_argument("--spike-factor", type=float, default=4.0, help="users in the spike / usual")
    group.add_argument("--trace", default="", help="CSV of arrivals to replay instead of users")
    group.add_argument("--summary", default="", help="JSON file for the results")


@events.init.add_listener
def _prepare(environment: Environment, **_: Any) -> None:
    options = _options(environment)
    if options.seed is None:  # a server remembers the answers of the last run
        options.seed = random.SystemRandom().randrange(1 << 31)
    environment.outrider_workload = Workload(  # type: ignore[attr-defined]
        options.model,
        options.seed,
        max_tokens=options.max_tokens,
        record_max_tokens=options.record_max_tokens,
        shared_words=options.shared_words,
        num_distinct=options.repeat_seeds or None,
    )
    environment.outrider_numbers = itertools.count()  # type: ignore[attr-defined]
    environment.outrider_drafts = WhoDrafted()  # type: ignore[attr-defined]
    known: dict[str, Answer] | None = None if options.any_text else {}
    environment.outrider_known = known  # type: ignore[attr-defined]
    environment.outrider_peak_users = 0  # type: ignore[attr-defined]

    def note_users(user_count: int, **_: Any) -> None:
        peak = max(environment.outrider_peak_users, user_count)  # type: ignore[attr-defined]
        environment.outrider_peak_users = peak  # type: ignore[attr-defined]

    def tell_drafts(**_: Any) -> None:
        drafts: WhoDrafted = environment.outrider_drafts  # type: ignore[attr-defined]
        print("\n".join(["", f"seed {options.seed}", *drafts.lines()]))

    environment.events.spawning_complete.add_listener(note_users)
    environment.events.quit.add_listener(tell_drafts)  # below locust's own tables
    if options.trace:
        environment.user_classes = [TraceUser]
        environment.shape_class = None
    else:
        environment.user_classes = [ModelUser]
        environment.shape_class = None if options.shape == "constant" else _Shape(options)


class Asker:
    """Sends requests of a workload and reports to locust how they went."""

    def __init__(self, environment: Environment, client: HttpSession) -> None:
        self._environment = environment
        self._client = client
        self.workload: Workload = environment.outrider_workload  # type: ignore[attr-defined]
        self._known: dict[str, Answer] | None = environment.outrider_known  # type: ignore[attr-defined]
        self._drafts: WhoDrafted = environment.outrider_drafts  # type: ignore[attr-defined]
        self._numbers: Iterator[int] = environment.outrider_numbers  # type: ignore[attr-defined]

    def number(self, rng: random.Random) -> int:
        """Return which request of a kind is asked next: a new one, or one of `--repeat-seeds`."""
        if num_distinct := _options(self._environment).repeat_seeds:
            return rng.randrange(num_distinct)
        worker = max(0, getattr(self._environment.runner, "worker_index", 0))
        return worker * _PER_WORKER + next(self._numbers)

    def ask(self, request: Request, *, leave_after: int | None = None) -> None:
        """Send one request and check its answer; go away after `leave_after` lines of it."""
        asking = Asking(request, leave_after)
        answer = Answer(began_s=time.perf_counter())
        with self._client.post(
            CHAT,
            json=self._speculated(request.body),
            headers=key_headers(),
            name=asking.name,
            stream=True,
            timeout=READ_TIMEOUT_S,
            catch_response=True,
        ) as response:
            if response.status_code == 200:
                self._read(response, answer, leave_after)
            else:
                answer.refuse(response.status_code, response.text or "")
            # locust's own time of a stream ends with its headers.
            whole_ms = (time.perf_counter() - answer.began_s) * 1e3
            response.request_meta["response_time"] = whole_ms
            if complaint := check_asked(asking, answer, self._known):
                response.failure(complaint)
                return
            response.success()
        if leave_after is None:
            self._drafts.take(request.kind, answer)
        # Not by an event: locust's total, its requests per second and its charts are of requests.
        for figure, value in answer.figures().items():
            entry = self._environment.stats.get(f"{asking.name}: {figure}", "figure")
            entry.log(value, 0)  # type: ignore[arg-type]  # it rounds for its histogram itself

    def _speculated(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the body with `--k`, and some with a wish for details, if the server has them."""
        k = _options(self._environment).k
        wanted = {"k": k} if k is not None else {}
        if self._drafts.wants_details:
            wanted["details"] = True
        return {**body, "speculation": wanted} if wanted else body

    @staticmethod
    def _read(response: Any, answer: Answer, leave_after: int | None) -> None:
        for number, line in enumerate(response.iter_lines()):
            answer.take(line.decode(), time.perf_counter())
            if leave_after is not None and number >= leave_after:
                response.close()  # this is what the server notices
                return


class ModelUser(HttpUser):
    """Someone who asks, reads, thinks, and sometimes goes away or makes a mistake."""

    abstract = False
    _numbers: ClassVar[itertools.count[int]] = itertools.count()

    def on_start(self) -> None:
        """Give every user a sequence of its own."""
        options = _options(self.environment)
        self._rng = random.Random(f"{options.seed}-user-{next(self._numbers)}")
        self._asker = Asker(self.environment, self.client)
        self._pause = between(0.5 * options.think_s, 1.5 * options.think_s)

    def wait_time(self) -> float:
        """Seconds of thinking."""
        return float(self._pause(self))

    def _number(self) -> int:
        return self._asker.number(self._rng)

    @task(MIX["chat"])
    def chat(self) -> None:
        """Ask for a story."""
        self._asker.ask(self._asker.workload.chat(self._number()))

    @task(MIX["record"])
    def record(self) -> None:
        """Ask for an order as JSON."""
        self._asker.ask(self._asker.workload.record(self._number()))

    @task(MIX["shared"])
    def shared(self) -> None:
        """Ask a question after the shared prompt."""
        self._asker.ask(self._asker.workload.shared(self._number()))

    @task(MIX["leave"])
    def leave(self) -> None:
        """Ask for a story and leave early."""
        request = self._asker.workload.chat(self._number())
        self._asker.ask(request, leave_after=self._rng.randint(1, 12))

    @task(MIX["bad"])
    def bad(self) -> None:
        """Send a bad request."""
        self._asker.ask(self._asker.workload.bad(self._number()))


class TraceUser(User):
    """One user that sends all requests of a trace when they are due."""

    fixed_count = 1

    def on_start(self) -> None:
        """Read the trace."""
        options = _options(self.environment)
        self._arrivals = read_trace(Path(options.trace), _KINDS)

    @task
    def replay(self) -> None:
        """Send every request at its time, wait for the answers, and end the run."""
        began_s = time.perf_counter()
        asked = []
        for number, arrival in enumerate(self._arrivals):
            gevent.sleep(max(0.0, began_s + arrival.at_s - time.perf_counter()))
            asked.append(gevent.spawn(self._ask, arrival.kind, number))
        gevent.joinall(asked, timeout=_TRACE_END_S)
        for late in asked:
            if not late.ready():
                late.kill(TimeoutError(f"no end within {_TRACE_END_S} s of the last arrival"))
        runner = self.environment.runner
        if runner is not None:
            gevent.spawn(runner.quit)
        raise StopUser

    def _ask(self, kind: str, number: int) -> None:
        client = HttpSession(
            base_url=self.host or self.environment.host,
            request_event=self.environment.events.request,
            user=self,
        )
        asker = Asker(self.environment, client)
        asker.ask(asker.workload.of_kind(kind, number))


class _Shape(LoadTestShape):
    """Ramp or spike, by the options."""

    abstract = True  # locust is not to make one by itself: it needs the options

    def __init__(self, options: Namespace) -> None:
        super().__init__()
        users = options.num_users or 8
        self._users: Ramp | Spike = Spike(users, options.spike_factor, options.shape_s)
        if options.shape == "ramp":
            self._users = Ramp(users, options.shape_s / 2, options.shape_s / 2)

    def tick(self) -> tuple[int, float] | None:
        """Users wanted now and how many may start per second; None ends the run."""
        users = self._users.users_at(self.get_run_time())
        return None if users is None else (users, float(users))


@events.quitting.add_listener
def _summarise(environment: Environment, **_: Any) -> None:
    """Write the summary: what ran, where, and locust's figures."""
    options = _options(environment)
    if not options.summary:
        return
    stats = environment.stats
    content = {
        "question": _QUESTION,
        **head("locust", sys.argv[1:], {key: getattr(options, key) for key in _SETTINGS}),
        SAMPLES: list(_rows(environment)),
        "claims": [],
        "problems": [
            f"{error.name}: {error.error} ({error.occurrences} times)"
            for error in stats.errors.values()
        ],
        "peak_users": environment.outrider_peak_users,  # type: ignore[attr-defined]
        "num_requests": stats.total.num_requests,
        "requests": [
            {
                "name": entry.name,
                "count": entry.num_requests,
                "failures": entry.num_failures,
                "mean": entry.avg_response_time,
                "median": entry.median_response_time,
                "p95": entry.get_response_time_percentile(0.95),
                "p99": entry.get_response_time_percentile(0.99),
                "per_s": entry.total_rps,
            }
            for entry in sorted(stats.entries.values(), key=lambda entry: entry.name)
        ],
        "drafts": environment.outrider_drafts.content(),  # type: ignore[attr-defined]
    }
    write_json(Path(options.summary), content)


def _rows(environment: Environment) -> Iterator[dict[str, Any]]:
    """Yield a row of the record for each kind of request that says how it was drafted."""
    drafts: WhoDrafted = environment.outrider_drafts  # type: ignore[attr-defined]
    entries = {entry.name: entry for entry in environment.stats.entries.values()}
    k = _options(environment).k
    for kind, said in drafts.content()["kinds"].items():
        medians = {  # an answer of one token has no time between tokens
            measure: entries[f"{kind}: {name}"].median_response_time
            for measure, name in _MEASURES.items()
            if f"{kind}: {name}" in entries
        }
        counts = {"asked": entries[kind].num_requests, "failed": entries[kind].num_failures}
        drafted = {name: said[name] for name in ("k", "acceptance", "draft_model_share")}
        figures = {**medians, **counts, **drafted}
        yield {
            "stage": "http",
            "workload": kind,
            "batch": environment.outrider_peak_users,  # type: ignore[attr-defined]
            "way": "adaptive" if k is None else f"k={k}",
            "runs": {name: [value] for name, value in figures.items() if value is not None},
        }


def _options(environment: Environment) -> Namespace:
    options = environment.parsed_options
    assert options is not None, "locust parses its command line before anything else"
    return options
