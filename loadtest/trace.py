"""`python -m loadtest.trace`: prints one request round by round.

Asks a running service for one answer with `speculation.details` and prints each round. A round has
its plan and reason, the drafters, the accepted tokens, its text, and its times.

    $ python -m loadtest.trace "Write a short story about a dog and a ball." --temperature 0

`--tests` prints each draft token as the target tested it. The line has p, q, their ratio, the draw
and the verdict. It also prints how many tokens a grammar allowed there.

    $ python -m loadtest.trace --tests --verification rejection --k 4
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from loadtest.client.answers import Answer, check_answer
from loadtest.client.http import ask_once, key_headers

_URL = "http://127.0.0.1:8000"
_PROMPT = "Write a short story about a dog and a ball."
_TIMEOUT_S = 30.0
# SGR codes: of the target's own tokens none, of a drafter's the first that is free.
_COLOURS = ("32", "34", "35", "36", "33")
_RED = "31;9"  # struck out: drafted in vain

Details = Mapping[str, Any]


class _Paint:
    """Colours text by who wrote it, where colours are wanted."""

    def __init__(self, *, is_on: bool) -> None:
        self._is_on = is_on
        self._codes: dict[str, str] = {}

    def of(self, origin: str, text: str) -> str:
        """Return the text in the colour of its origin; `target` has none."""
        if origin == "target":
            return text
        number = len(self._codes)
        code = self._codes.setdefault(origin, _COLOURS[number % len(_COLOURS)])
        return self.code(code, text)

    def code(self, code: str, text: str) -> str:
        """Return the text with an SGR code around it."""
        return f"\x1b[{code}m{text}\x1b[0m" if self._is_on else text


def trace_lines(
    details: Details, *, has_colours: bool = False, has_tests: bool = False
) -> Iterator[str]:
    """Yield the lines that tell one choice's rounds.

    Args:
        details: an entry of an answer's `speculation_details`.
        has_colours: whether a terminal reads them.
        has_tests: whether each draft token gets a line.
    """
    paint = _Paint(is_on=has_colours)
    tokens: dict[int, list[Details]] = {}
    for token in details["tokens"]:
        tokens.setdefault(token["round"], []).append(token)
    yield "round  k   drafted by             accepted  ms (draft + verify)     text"
    for each in details["rounds"]:
        yield _round_line(each, tokens.get(each["round"], ()), paint)
        if each["why"] is not None and (said := _why(each["why"])):
            yield f"           {said}"
        if has_tests:
            yield from map(_test_line, each["tests"])
            yield from map(_allowed_line, tokens.get(each["round"], ())[-1:])


def _test_line(test: Details) -> str:
    """Show a draft token and the reason for its verdict."""
    verdict = {True: "accepted", False: "rejected", None: "not looked at"}[test["accepted"]]
    said = f"p {test['p']:.3f}"
    if test["q"] is not None:
        said += f"  q {test['q']:.3f}  ratio {test['ratio']:.3f}  u {test['u']:.3f}"
    return f"           {_shown(test['token'])!r:<14} {said}  {verdict}{_allowed(test)}"


def _allowed_line(token: Details) -> str:
    """Show the round's last token, which is the target's own unless it was drafted."""
    source = "the target's own" if token["origin"] == "target" else "drafted"
    probability = math.exp(token["logprob"])
    return (
        f"           {_shown(token['token'])!r:<14} model's probability {probability:.3f}  "
        f"{source}{_allowed(token)}"
    )


def _allowed(place: Details) -> str:
    num = place["allowed"]
    return "" if num is None else f"  ({num} token{'' if num == 1 else 's'} allowed)"


def summary_lines(details: Details, answer: Answer) -> Iterator[str]:
    """Yield what the rounds come to."""
    rounds = details["rounds"]
    num_tokens = sum(each["num_tokens"] for each in rounds)
    round_ms = math.fsum(each["time"]["round_ms"] for each in rounds)
    drafted: dict[str, list[int]] = {}
    for part in (part for each in rounds for part in each["drafted"]):
        counts = drafted.setdefault(part["drafter"], [0, 0])
        counts[0] += part["num_accepted"]
        counts[1] += part["num_tokens"]
    yield (
        f"{num_tokens} tokens in {len(rounds)} rounds: {num_tokens / max(len(rounds), 1):.2f} a "
        f"round, {1e3 * num_tokens / max(round_ms, 1e-9):.0f} tokens/s in rounds, "
        f"{answer.ended_s - answer.began_s:.2f} s in all"
    )
    for name, (num_accepted, num_drafted) in drafted.items():
        rate = 100 * num_accepted / max(num_drafted, 1)
        yield f"{name}: {num_accepted} of {num_drafted} tokens accepted, {rate:.0f}%"
    for origin in ("target", *drafted):
        logprobs = [t["logprob"] for t in details["tokens"] if t["origin"] == origin]
        if logprobs:
            mean = math.exp(math.fsum(logprobs) / len(logprobs))
            yield f"{origin}: {len(logprobs)} tokens of the text, mean probability {mean:.2f}"


def _round_line(each: Details, tokens: Sequence[Details], paint: _Paint) -> str:
    drafted = each["drafted"]
    names = "+".join(f"{part['drafter']} {part['num_tokens']}" for part in drafted) or "-"
    num_accepted = sum(part["num_accepted"] for part in drafted)
    accepted = f"{num_accepted}/{sum(part['num_tokens'] for part in drafted)}" if drafted else "-"
    time = each["time"]
    spent = f"{time['round_ms']:.1f} ({time['draft_ms']:.1f} + {time['verify_ms']:.1f})"
    k = "." if each["k"] is None else each["k"]  # a plain step goes on by the last plan
    text = "".join(paint.of(token["origin"], _shown(token["token"])) for token in tokens)
    vain = "".join(f" {paint.code(_RED, _shown(name))}" for name in each["rejected"])
    vain = f"   not:{vain}" if vain else ""
    return f"{each['round']:>5}  {k:<3} {names:<22} {accepted:<9} {spent:<23} {text}{vain}"


def _why(why: Details) -> str:
    """Show the reason of a plan, and its figures if the planner has any."""
    said = str(why["reason"])
    if why["survival"] and why["depth"]:
        survival = " ".join(f"{alive:.2f}" for alive in why["survival"])
        said += (
            f": survival {survival}, a row must bring {why['min_survival']:.2f}, "
            f"depth {why['depth']}, sessions {why['num_sessions']}"
        )
    if why["pass_ms"]:
        said += f"; a pass {why['pass_ms']:.2f} ms, a draft step {why['step_ms']:.2f} ms"
    return said


def _shown(text: str) -> str:
    """Show a token without line breaks and control characters, which could reach the terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _body(options: argparse.Namespace, model: str) -> dict[str, Any]:
    speculation: dict[str, Any] = {"details": True, "enabled": not options.off}
    if options.k is not None:
        speculation["k"] = options.k
    if options.drafter is not None:
        speculation["drafter"] = options.drafter
    if options.verification is not None:
        speculation["verification"] = options.verification
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": options.prompt}],
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "seed": options.seed,
        "speculation": speculation,
    }
    if options.schema is not None:
        schema = json.loads(options.schema.read_text(encoding="utf-8"))
        body["structured_outputs"] = {"json": schema}
    return body


def _model(url: str) -> str:
    """Return the name of the served model.

    Raises:
        httpx.HTTPError: the service cannot be reached, or refuses.
    """
    response = httpx.get(f"{url}/v1/models", headers=key_headers(), timeout=_TIMEOUT_S)
    response.raise_for_status()
    return str(response.json()["data"][0]["id"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.trace", description="Print one request round by round."
    )
    parser.add_argument("prompt", nargs="?", default=_PROMPT)
    parser.add_argument("--url", default=_URL, help="of the service, without /v1")
    parser.add_argument("--max-tokens", type=int, default=60)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--k", type=int, help="a fixed draft length")
    parser.add_argument("--drafter", help="who drafts")
    parser.add_argument("--verification", help="coupled or rejection")
    parser.add_argument("--tests", action="store_true", help="each draft token as it was tested")
    parser.add_argument("--off", action="store_true", help="without drafts")
    parser.add_argument("--schema", type=Path, help="file of a JSON schema for the answer")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask and print; 1 where there is no answer to print, with the reason on standard error."""
    options = _parser().parse_args(arguments)
    url = options.url.rstrip("/")
    try:
        answer = ask_once(url, _body(options, _model(url)))
    except (httpx.HTTPError, OSError, ValueError) as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 1
    problem = check_answer(answer)
    if problem or not answer.details:
        print(f"{url}: {problem or 'the answer has no speculation_details'}", file=sys.stderr)
        return 1
    [details] = answer.details
    has_colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for line in trace_lines(details, has_colours=has_colours, has_tests=options.tests):
        print(line)
    print()
    for line in summary_lines(details, answer):
        print(line)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
