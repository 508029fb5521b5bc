"""Compares draft models on the same answers, exactly, and beside it as a split of the traffic.

    python -m loadtest.compare_drafts --output loadtest/results/compare-drafts.json
    python -m loadtest.compare_drafts --url http://127.0.0.1:8000 --model NAME --drafts small tiny

Each answer is drafted by one of them, drawn, at a fixed k. The service then reports the tokens that
every draft model would have drafted along it (`speculation.compare`). That is counted and not
estimated under shared noise. So each answer compares all of them: differences are paired. The
estimate of the split alone, from the answers that each really drafted, is shown beside it. The
report says if the two agree. If no url is given, it serves `configs/demo.yaml` with its draft model
and a copy of it. The copy has noise in its weights, so it is known to be worse.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM

from loadtest.bench.claims import Claim
from loadtest.client.http import CHAT, READ_TIMEOUT_S, complete
from loadtest.frame.prompts import TASKS, Prompt, read_prompts
from loadtest.report.machine import ROOT
from loadtest.service.served import POD_ENVIRONMENT, Config, section, served
from loadtest.trial import frame

_SPOILED = "spoiled"
_FIRST = "draft_model"
_NUM_RESAMPLES = 2000
_FEWEST = 5  # answers before an interval is looked at
_SOON = 200  # answers after which the better of two should be known


class Interval(NamedTuple):
    """A mean and its 95% interval."""

    mean: float
    low: float
    high: float

    @property
    def is_decided(self) -> bool:
        """True if 0 is outside."""
        return not self.low <= 0.0 <= self.high


class Compared(NamedTuple):
    """One answer.

    Attributes:
        drafter: who really drafted it.
        foretold: tokens a round at the k of the run, by draft model.
        real: tokens a round, as it came.
        round_ms: of drafting and verifying, a round.
    """

    drafter: str
    foretold: dict[str, float]
    real: float
    round_ms: float


@dataclass(kw_only=True)
class Report(frame.Report):
    """The results; `answers` are in the order in which they came."""

    drafts: list[str] = field(default_factory=list)
    k: int = 0
    answers: list[Compared] = field(default_factory=list)

    @property
    def paired(self) -> Interval:
        """The first draft model's tokens a round less the second's, answer by answer."""
        return interval(self._differences())

    @property
    def split(self) -> Interval:
        """The same from the answers that each really drafted: two samples."""
        first, second = (
            [one.real for one in self.answers if one.drafter == name] for name in self.drafts[:2]
        )
        return difference(first, second)

    @property
    def num_needed(self) -> int | None:
        """Answers after which the paired interval leaves 0 out and does so to the end; None: it
        never does."""
        differences = self._differences()
        needed = None
        for count in range(len(differences), _FEWEST - 1, -1):
            if not interval(differences[:count]).is_decided:
                break
            needed = count
        return needed

    def agreement(self, name: str) -> Interval:
        """Return predicted minus measured for a draft model, on the answers that it drafted."""
        own = [one for one in self.answers if one.drafter == name]
        return interval([one.foretold[name] - one.real for one in own])

    def tokens_per_s(self, name: str) -> float:
        """Return tokens per second of a draft model.

        The tokens are predicted on all answers; the time is measured on rounds that it drafted.
        """
        tokens = statistics.mean(one.foretold[name] for one in self.answers)
        took = [one.round_ms for one in self.answers if one.drafter == name]
        return 1e3 * tokens / statistics.median(took) if took else 0.0

    @property
    def claims(self) -> list[Claim]:
        """The better draft model is found soon, and what is foretold of each is what comes."""
        needed = self.num_needed or math.inf
        claims = [Claim("answers until the better one is known", needed, "at most", _SOON)]
        for name in self.drafts:
            off = self.agreement(name)
            text = f"{name}: foretold less real, in half widths of its interval"
            claims.append(Claim(text, abs(off.mean) / (off.high - off.low) * 2, "at most", 1.0))
        return claims

    def _differences(self) -> list[float]:
        first, second = self.drafts[:2]
        return [one.foretold[first] - one.foretold[second] for one in self.answers]

    def content(self) -> dict[str, object]:
        """See `frame.Report`."""
        if self.crash or len(self.answers) < _FEWEST:
            return {"crash": self.crash, "num_answers": len(self.answers)}
        return {
            "k": self.k,
            "num_answers": len(self.answers),
            "drafts": {
                name: {
                    "tokens_per_round": statistics.mean(x.foretold[name] for x in self.answers),
                    "tokens_per_s": self.tokens_per_s(name),
                    "num_drafted": sum(one.drafter == name for one in self.answers),
                    "foretold_less_real": self.agreement(name)._asdict(),
                }
                for name in self.drafts
            },
            "paired": self.paired._asdict(),
            "num_needed": self.num_needed,
            "split": self.split._asdict(),
            "claims": [claim.record() for claim in self.claims],
            "crash": self.crash,
        }

    def lines(self) -> Iterator[str]:
        """Yield a line for each draft model, then the differences."""
        if len(self.answers) < _FEWEST:
            return
        for name in self.drafts:
            tokens = statistics.mean(one.foretold[name] for one in self.answers)
            off = self.agreement(name)
            yield (
                f"{name:<16}{tokens:6.2f} tokens a round at k = {self.k}, "
                f"{self.tokens_per_s(name):6.1f} tokens/s; foretold less real {_said(off)}"
            )
        needed = self.num_needed
        when = "not decided" if needed is None else f"decided after {needed} answers"
        yield f"{self.drafts[0]} less {self.drafts[1]}, paired: {_said(self.paired)}, {when}"
        yield f"{self.drafts[0]} less {self.drafts[1]}, by split: {_said(self.split)}"
        yield from map(str, self.claims)


def interval(values: Sequence[float]) -> Interval:
    """Return the mean, and the range of 95% of the means of resamples; nan without values."""
    if not values:
        return Interval(float("nan"), float("nan"), float("nan"))
    return _interval_of(_means(values), statistics.mean(values))


def difference(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Return the same for the difference of two samples' means."""
    if not first or not second:
        return Interval(float("nan"), float("nan"), float("nan"))
    mean = statistics.mean(first) - statistics.mean(second)
    return _interval_of(_means(first) - _means(second), mean)


def _means(values: Sequence[float]) -> Any:
    """Return means of resamples.

    Each call draws anew, so that two samples stay independent.
    """
    seed = len(values) + int(1e6 * abs(values[0]))
    generator = np.random.default_rng(seed)
    return generator.choice(np.asarray(values), (_NUM_RESAMPLES, len(values))).mean(axis=1)


def _interval_of(means: Any, mean: float) -> Interval:
    low, high = np.percentile(means, [2.5, 97.5])
    return Interval(mean, float(low), float(high))


def _said(found: Interval) -> str:
    return f"{found.mean:+.3f} ({found.low:+.3f} to {found.high:+.3f})"


def run(arguments: argparse.Namespace, report: Report) -> None:
    """Ask for all answers, one after another."""
    report.drafts, report.k = arguments.drafts or [_FIRST, _SPOILED], arguments.k
    with _service(arguments) as url, httpx.Client(base_url=url, timeout=READ_TIMEOUT_S) as client:
        prompts = read_prompts(arguments.prompts)
        for number in tqdm(range(arguments.answers), unit="answer"):
            prompt = prompts[number % len(prompts)]
            report.answers.append(_compared(client, arguments, report, prompt, number))


def _compared(
    client: httpx.Client,
    arguments: argparse.Namespace,
    report: Report,
    prompt: Prompt,
    number: int,
) -> Compared:
    """Return one answer, by a draft model that is drawn."""
    drafter = random.Random(number).choice(report.drafts)
    body = {
        "model": arguments.model,
        "messages": prompt.chat(),
        "max_tokens": arguments.tokens,
        "temperature": arguments.temperature,
        "seed": number,
        "stream": True,
        "stream_options": {"include_usage": True},
        "speculation": {"drafter": drafter, "k": arguments.k, "compare": True},
    }
    answer = complete(client, CHAT, body)
    said = answer.speculation
    found: Mapping[str, Any] = said["drafts"]
    began_s, ended_s = answer.first_text_s or 0.0, answer.last_text_s or 0.0
    num_rounds = max(1, said["num_spec_steps"] - 1)
    return Compared(
        drafter=drafter,
        foretold={name: found[name]["tokens_per_round"][arguments.k - 1] for name in report.drafts},
        real=float(said["mean_acceptance_length"]),
        round_ms=1e3 * (ended_s - began_s) / num_rounds,  # from the first round's end
    )


@contextmanager
def _service(arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the address of the draft models' service: the given url, or a service started here."""
    if arguments.url:
        yield arguments.url.rstrip("/")
        return
    with tempfile.TemporaryDirectory(prefix="outrider-drafts-") as folder:

        def change(tree: Config) -> None:
            parts = tree["applications"][0]["args"]
            spoiled = _spoil(ROOT / parts["draft"]["model_path"], Path(folder), arguments.noise)
            parts["drafts"] = {_SPOILED: parts["draft"] | {"model_path": str(spoiled)}}
            # Repeated text is left to the draft models: rounds are then theirs alone.
            nothing_repeats = {"prompt_lookup_max": 0, "suffix_decoding_max_tree_depth": 0}
            section(tree, "router.speculation").update(nothing_repeats)
            for deployment in list(tree["applications"][0]["deployments"]):
                if deployment["name"] == "Draft":
                    named = deployment | {"name": f"Draft-{_SPOILED}"}
                    tree["applications"][0]["deployments"].append(named)

        with served(arguments.config, change=change, environment=POD_ENVIRONMENT) as service:
            yield service.base_url


def _spoil(source: Path, folder: Path, noise: float) -> Path:
    """Make a copy of a checkpoint with noise in its weights, of a share of their own spread."""
    model = AutoModelForCausalLM.from_pretrained(source)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            drawn = torch.randn(weight.shape, generator=generator)
            weight.add_((noise * weight.float().std() * drawn).to(weight.dtype))
    model.save_pretrained(folder)
    for path in source.glob("token*"):
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = frame.trial_parser("loadtest.compare_drafts", __doc__)
    parser.add_argument("--url", default="", help="of a service that runs; default: one is served")
    parser.add_argument("--model", default="outrider-demo", help="its model's name")
    parser.add_argument("--drafts", nargs="+", help="names, the first against the second")
    parser.add_argument("--prompts", type=Path, default=TASKS, help="schemas left out")
    parser.add_argument("--noise", type=float, default=0.15, help="in the weights of the copy")
    parser.add_argument("--answers", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=80, help="of each answer, at most")
    parser.add_argument("--k", type=int, default=4, help="draft tokens of a round")
    parser.add_argument("--temperature", type=float, default=0.7)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, and return the exit status."""
    return frame.run_trial("loadtest.compare_drafts", _parse, run, Report(), argv)


if __name__ == "__main__":
    sys.exit(main())
