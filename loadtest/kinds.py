"""Measures the gain of drafting by kind of prompt: a real model over HTTP, without a draft model.

    python -m models.fetch smollm2
    python -m loadtest.kinds --output loadtest/results/smollm2-kinds.json
    python -m loadtest.kinds --heads models/demo/smollm2 --output results/smollm2-heads.json

The ways are plain, suffix decoding at k = 5, and adaptive. If `--heads` is given, they are plain,
suffix decoding, heads on the target, and both, which adaptive requests get then.

Serves `configs/smollm2.yaml` and asks every prompt of `kinds.json` (our own words) greedily in each
way. The ways take turns within the prompt, so that a machine that slows down slows all ways alike.
Fails when a prompt's text is not the same in every way. Ratios are of one prompt's times in one
turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import httpx
from tqdm import tqdm

from loadtest.bench.claims import Claim
from loadtest.client.answers import Answer
from loadtest.client.http import CHAT, READ_TIMEOUT_S, complete
from loadtest.report.interleaved import interleave, median_ratio
from loadtest.service.served import POD_ENVIRONMENT, Config, served
from loadtest.trial import frame

PLAIN = "plain"
_PROMPTS = Path(__file__).parent / "frame" / "kinds.json"
Ways = Mapping[str, dict[str, Any]]  # a request's settings of speculation, by name
_SUFFIX, _HEADS, _ADAPTIVE = "suffix", "heads", "adaptive"
WAYS: Ways = {PLAIN: {"enabled": False}, "k=5": {"k": 5}, _ADAPTIVE: {}}
WITH_HEADS: Ways = {
    PLAIN: {"enabled": False},
    _SUFFIX: {"drafter": "suffix"},
    _HEADS: {"drafter": "heads"},
    _ADAPTIVE: {},
}
_WARM_UP_TOKENS = 16
_SALTS = count()
_HEADS_GAIN = 1.5  # goal of heads alone where suffix decoding gains less than the next
_LITTLE_GAIN = 1.2


@dataclass(slots=True, kw_only=True)
class KindReport:
    """Medians over the prompts and turns of one kind."""

    kind: str
    num_prompts: int
    tokens_per_s: dict[str, float]
    ratio_to_plain: dict[str, float]
    tokens_per_round: dict[str, float]


@dataclass(kw_only=True)
class Report(frame.Report):
    """All that was found; `differing`: prompts whose text depended on the way."""

    kinds: list[KindReport] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """Texts that were not the same in every way."""
        return [
            f"the text of {one} depends on the way" for one in self.differing
        ] + super().problems

    def content(self) -> dict[str, object]:
        """See `frame.Report`."""
        return {
            "kinds": [asdict(one) for one in self.kinds],
            "differing": self.differing,
            "claims": [claim.record() for claim in claims_of(self.kinds)],
            "crash": self.crash,
        }

    def lines(self) -> Iterator[str]:
        """Tokens per second of each way, and times plain."""
        for one in self.kinds:
            yield f"{one.kind}: " + ", ".join(
                f"{way} {rate:.1f} ({one.ratio_to_plain[way]:.2f}x, "
                f"{one.tokens_per_round[way]:.2f} tokens a round)"
                for way, rate in one.tokens_per_s.items()
            )
        yield from map(str, claims_of(self.kinds))


def claims_of(kinds: Sequence[KindReport]) -> list[Claim]:
    """Return the claims on heads: they gain where text does not repeat; both together gain more."""
    claims = []
    for one in kinds:
        gain = one.ratio_to_plain
        if _HEADS not in gain:
            continue
        if gain[_SUFFIX] < _LITTLE_GAIN:
            text = f"{one.kind}: heads / plain"
            claims.append(Claim(text, gain[_HEADS], "at least", _HEADS_GAIN))
        better = gain[_ADAPTIVE] / max(gain[_SUFFIX], gain[_HEADS])
        claims.append(Claim(f"{one.kind}: both / the better of the two", better, "at least", 1.0))
    return claims


def read_prompts(path: Path = _PROMPTS) -> dict[str, list[str]]:
    """Prompts by kind.

    Raises:
        ValueError: the file is not of that form.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or not all(
        isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts)
        for texts in content.values()
    ):
        raise ValueError(f"{path} must map kinds to lists of prompts")
    return content


class Chats:
    """Asks a running service, one prompt after another. Made by `chats_with`."""

    def __init__(self, client: httpx.Client, model: str, ways: Ways = WAYS) -> None:
        self._client = client
        self._model = model
        self.ways = ways

    def ask(self, text: str, way: str, max_tokens: int) -> Answer:
        """Return a greedy answer, streamed.

        Raises:
            RuntimeError: it is an error.
        """
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "speculation": self.ways[way],
            "cache_salt": str(next(_SALTS)),  # nothing is drafted from answers of another way
        }
        return complete(self._client, CHAT, body)


@contextmanager
def chats_with(
    config: Path, model_path: str | None, threads: int, heads: str | None = None
) -> Iterator[Chats]:
    """Serve a config, with another model or with heads where they are given, until the end."""
    names: list[str] = []

    def change(tree: Config) -> None:
        arguments = tree["applications"][0]["args"]
        arguments["target"] |= {
            "num_threads": threads,
            "enable_prefix_caching": False,  # the second way must read the prompt as the first
            "heads": heads,
        }
        if model_path is not None:
            arguments["target"]["model_path"] = model_path
        names.append(arguments["router"]["model_name"])

    with (
        served(config, change=change, environment=POD_ENVIRONMENT) as service,
        httpx.Client(base_url=service.base_url, timeout=READ_TIMEOUT_S) as client,
    ):
        yield Chats(client, names[0], WAYS if heads is None else WITH_HEADS)


def measure_kind(
    chats: Chats, kind: str, texts: Sequence[str], max_tokens: int, repeats: int, report: Report
) -> None:
    """Measure all prompts of a kind for the report."""
    rates: dict[str, list[float]] = {way: [] for way in chats.ways}
    lengths: dict[str, list[float]] = {way: [] for way in chats.ways}
    for number, text in enumerate(texts):
        lines = {way: partial(chats.ask, text, way, max_tokens) for way in chats.ways}
        answers = interleave(lines, repeats)
        if len({answer.text for given in answers.values() for answer in given}) != 1:
            report.differing.append(f"{kind} {number + 1}")
        for way, given in answers.items():
            rates[way] += [_tokens_per_s(answer) for answer in given]
            lengths[way] += [_tokens_per_round(answer) for answer in given]
    report.kinds.append(
        KindReport(
            kind=kind,
            num_prompts=len(texts),
            tokens_per_s={way: statistics.median(values) for way, values in rates.items()},
            ratio_to_plain={
                way: median_ratio(values, rates[PLAIN]) for way, values in rates.items()
            },
            tokens_per_round={way: statistics.mean(values) for way, values in lengths.items()},
        )
    )


def run(arguments: argparse.Namespace, report: Report) -> None:
    """Serve, and measure kind after kind."""
    kinds = {kind: texts[: arguments.prompts] for kind, texts in read_prompts().items()}
    kinds = {kind: kinds[kind] for kind in arguments.kinds or kinds}
    with chats_with(
        arguments.config, arguments.model_path, arguments.threads, arguments.heads
    ) as chats:
        for way in chats.ways:  # the first pass makes things, which is not measured
            chats.ask(kinds[next(iter(kinds))][0], way, _WARM_UP_TOKENS)
        for kind, texts in tqdm(kinds.items(), unit="kind"):
            measure_kind(chats, kind, texts, arguments.tokens, arguments.repeats, report)


def _tokens_per_s(answer: Answer) -> float:
    """Return the client's tokens per second; the time includes the prefill."""
    return answer.num_completion_tokens / (answer.ended_s - answer.began_s)


def _tokens_per_round(answer: Answer) -> float:
    """Return the tokens of a round with a draft; 1.0 if there was none."""
    return float(answer.speculation.get("mean_acceptance_length") or 1.0)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = frame.trial_parser("loadtest.kinds", __doc__, config="smollm2.yaml")
    parser.add_argument("--model-path", help="in place of the config's target")
    parser.add_argument("--heads", help="folder of heads that draft in the target's process")
    parser.add_argument("--kinds", nargs="+", choices=sorted(read_prompts()), help="default: all")
    parser.add_argument("--prompts", type=_positive, default=3, help="of each kind, at most")
    parser.add_argument("--tokens", type=_positive, default=96, help="of each answer, at most")
    parser.add_argument("--repeats", type=_positive, default=2, help="of each prompt in each way")
    parser.add_argument("--threads", type=_positive, default=1, help="of the target")
    return parser.parse_args(argv)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bench from the command line; exit status 1: a text was not the same."""
    return frame.run_trial("loadtest.kinds", _parse, run, Report(), argv)


if __name__ == "__main__":
    sys.exit(main())
