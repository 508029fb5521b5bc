"""Changes a running service by `serve deploy`, under streams that must not notice.

    python -m loadtest.rolling --streams 8 --output loadtest/results/rolling.json

Starts a private cluster of nodes in name only (`loadtest.service.cluster`). It has a draft node and
a target node more than configs/prod.yaml asks for. It deploys that config and notes the answers of
8 free and 8 constrained streams undisturbed. Then it deploys changes while the streams run: other
limits, wrong limits, the first limits again, a second draft. A changed key of the router and one of
the target come last. Both replace every process, which is Serve's rule for `args`. Every request
must complete with the same text and valid JSON. Each change must have taken effect, and nothing may
be held afterwards. Ends with status 1 when anything failed.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from deployments.config.schema import AppConfig
from loadtest.client.cases import constrained_cases, free_cases
from loadtest.client.streams import FaultLoad
from loadtest.service.cluster import (
    DRAFT,
    ROUTER,
    TARGET,
    PrivateCluster,
    arguments,
    deployment,
    on_one_machine,
    private_cluster,
)
from loadtest.service.parts import FaultService
from loadtest.service.served import Config
from loadtest.trial import frame
from loadtest.trial.watched import streams_running

SETTLE_LIMIT_S = 400.0
_STEADY_LIMIT_S = 120.0
_FREED_LIMIT_S = 60.0
_CALM_S = 5.0
_ASKED = 8  # times, so that more than one router is asked

Check = Callable[[], str]  # says, for people, why the change is not there yet; "" if it is


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a change. Times are in seconds since `serve deploy` began."""

    change: str
    settled_s: float  # until all replicas were as wanted and the old ones gone
    pause_free_s: float  # longest wait for a chunk of any free stream
    pause_constrained_s: float
    replaced: dict[str, int]  # processes that are no more, by kind
    num_answers: int
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return the result as a line for people."""
        gone = ", ".join(f"{number} {kind}" for kind, number in self.replaced.items()) or "nothing"
        verdict = f"FAILED: {self.problems}" if self.problems else "ok"
        return (
            f"{self.change}: {self.settled_s:.1f} s, replaced {gone}; pause "
            f"{self.pause_free_s:.1f} s free, {self.pause_constrained_s:.1f} s constrained; "
            f"{self.num_answers} answers: {verdict}"
        )


class Roller:
    """Deploys changes to a cluster whose streams run."""

    def __init__(self, cluster: PrivateCluster, service: FaultService, load: FaultLoad) -> None:
        self._cluster = cluster
        self._service = service
        self._load = load

    def roll(self, change: str, config: Config, check: Check = str) -> Outcome:
        """Deploy `config`, wait until that is done, and see what it did to the streams.

        Raises:
            RuntimeError: Serve refused the config, or streams stand still.
            TimeoutError: it was not done after `SETTLE_LIMIT_S`.
        """
        if not self._load.wait_steady(_STEADY_LIMIT_S):
            raise RuntimeError(f"before {change}: some stream got nothing")
        problems = [f"before it: {failure}" for failure in self._load.take_failures()]
        before, num_before = self._pids(), self._load.num_answers
        began_s = time.monotonic()
        self._cluster.deploy(config)
        self._service.wait_deployed(SETTLE_LIMIT_S)
        settled_s = time.monotonic() - began_s
        after = self._pids()
        if complaint := check():
            problems.append(complaint)
        if not self._load.wait_steady(_STEADY_LIMIT_S):
            problems.append("afterwards some stream got nothing")
        free_s, constrained_s = self._load.pauses(began_s, began_s + settled_s)
        problems += [str(failure) for failure in self._load.take_failures()]
        return Outcome(
            change=change,
            settled_s=settled_s,
            pause_free_s=free_s,
            pause_constrained_s=constrained_s,
            replaced={k: len(gone) for k, pids in before.items() if (gone := pids - after[k])},
            num_answers=self._load.num_answers - num_before,
            problems=problems,
        )

    def _pids(self) -> dict[str, set[int]]:
        return {kind: {p.pid for p in found} for kind, found in self._service.parts().items()}


def k_limit_is(base_url: str, limit: int, api_key: str = "") -> str:
    """Return a complaint if a router does not allow exactly k = `limit` at most; "" if all do."""
    for _ in range(_ASKED):
        if (status := _ask(base_url, limit, api_key).status_code) != httpx.codes.OK:
            return f"k = {limit} should be allowed, got HTTP {status}"
        refused = _ask(base_url, limit + 1, api_key)
        if f"at most {limit} " not in refused.text:
            return f"k = {limit + 1} should be refused: {refused.text[:200]}"
    return ""


def refusal_is_reported(base_url: str) -> str:
    """Return a complaint if no router's metrics report the refused user_config; "" if one does."""
    for _ in range(_ASKED):
        text = httpx.get(f"{base_url}/metrics", timeout=10).text
        refused = [
            line for line in text.splitlines() if line.startswith("outrider:user_config_ref")
        ]
        if refused and refused[0].endswith(" 1.0"):
            return ""
    return "no router's metrics report the refused user_config"


def _ask(base_url: str, k: int, api_key: str) -> httpx.Response:
    body = {
        "model": "outrider-demo",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 1,
        "speculation": {"k": k},
    }
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    url = f"{base_url}/v1/chat/completions"
    return httpx.post(url, json=body, headers=headers, timeout=60)


# --- the command --------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Report(frame.Report):
    """The results so far; violations are requests held at the end, or late ones."""

    outcomes: list[Outcome] = field(default_factory=list)
    calm_s: dict[str, float] = field(default_factory=dict)  # longest waits before the first change

    @property
    def problems(self) -> list[str]:
        """Problems of all changes, and leaks at the end."""
        found = [f"{o.change}: {problem}" for o in self.outcomes for problem in o.problems]
        nothing = [] if self.outcomes else ["nothing was changed"]
        return [*found, *nothing, *super().problems]

    def content(self) -> dict[str, object]:
        """See `frame.Report`."""
        return {
            "is_clean": self.is_clean,
            "num_answers": self.num_answers,
            "longest_wait_without_changes_s": self.calm_s,
            "crash": self.crash,
            "leftovers": self.violations,
            "changes": [asdict(outcome) for outcome in self.outcomes],
        }

    def lines(self) -> list[str]:
        """Return the number of requests as a line."""
        return [f"{self.num_answers} requests"]


def first_config(path: Path, tensor_parallel_size: int) -> Config:
    """Return the first config; its target's replacement starts before the old one ends."""
    config = on_one_machine(path)
    set_ranks(config, tensor_parallel_size)
    deployment(config, "Target")["max_surge_percent"] = 100
    return config


def set_ranks(config: Config, number: int) -> None:
    """So many ranks for the target, and as many of its bundles."""
    arguments(config)["target"]["tensor_parallel_size"] = number
    target = deployment(config, "Target")
    target["placement_group_bundles"] = target["placement_group_bundles"][:number]


def changes(config: Config, base_url: str) -> list[tuple[str, Config, Check]]:
    """Return the successive deployments: name, config, and the check that must then hold."""
    found: list[tuple[str, Config, Check]] = []

    def then(name: str, edit: Callable[[Config], None], check: Check = str) -> None:
        changed = copy.deepcopy(found[-1][1] if found else config)
        edit(changed)
        found.append((name, changed, check))

    def limits(value: Any) -> Callable[[Config], None]:
        return lambda changed: deployment(changed, "Router").update(user_config=value)

    speculation = AppConfig.model_validate(arguments(config)).router.speculation
    k_limit = speculation.max_num_speculative_tokens
    lower = {"speculation": {"max_num_speculative_tokens": 4}, "max_sessions": 80}
    then("other limits", limits(lower), lambda: k_limit_is(base_url, 4))
    then(
        "wrong limits",
        limits({"speculation": {"max_num_speculative_tokens": 5}, "max_sesions": 80}),
        lambda: k_limit_is(base_url, 4) or refusal_is_reported(base_url),
    )
    then("the first limits", limits({}), lambda: k_limit_is(base_url, k_limit))
    then("a second draft", lambda changed: deployment(changed, "Draft").update(num_replicas=2))
    then(
        "a key of the router",
        lambda changed: arguments(changed)["router"].update(default_max_tokens=77),
    )
    then(
        "a key of the target",
        lambda changed: arguments(changed)["target"].update(max_num_batched_tokens=1024),
    )
    return found


def run(settings: argparse.Namespace, report: Report) -> None:
    """Serve, load, change, and look at what is left."""
    with private_cluster() as cluster:
        for role in (ROUTER, DRAFT, DRAFT, TARGET, TARGET):
            cluster.add(role)
        config = first_config(settings.config, settings.tensor_parallel_size)
        cluster.deploy(config)
        cluster.wait_healthy(SETTLE_LIMIT_S)
        with FaultService(cluster) as service:
            service.wait_deployed(SETTLE_LIMIT_S)
            cases = [*free_cases(settings.streams), *constrained_cases(settings.streams)]
            load = FaultLoad(cluster.base_url, cases)
            with streams_running(load, report):
                report.calm_s = load.measure_calm(_CALM_S, _STEADY_LIMIT_S)
                roller = Roller(cluster, service, load)
                for name, changed, check in changes(config, cluster.base_url):
                    report.outcomes.append(roller.roll(name, changed, check))
                    print(report.outcomes[-1].line(), flush=True)
            report.violations += service.wait_freed(_FREED_LIMIT_S)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = frame.trial_parser("loadtest.rolling", __doc__, config="prod.yaml")
    parser.add_argument("--streams", type=int, default=8, help="free ones, and as many constrained")
    parser.add_argument(
        "--tensor-parallel-size",
        type=int,
        default=1,
        help="ranks of the target, in place of the config's: here all share the same cores",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run it from the command line; the exit status."""
    return frame.run_trial("loadtest.rolling", _parse, run, Report(), argv)


if __name__ == "__main__":
    sys.exit(main())
