"""Proves that two OpenAI servers answer the same, or says which texts differ, where and how often.

    python -m loadtest.same --url http://127.0.0.1:8000 --url http://127.0.0.1:9000
    python -m loadtest.same --url http://127.0.0.1:8000 --b-body '{"speculation": {"k": 5}}'
    python -m loadtest.same --output loadtest/results/same-demo.json

Sends the same seeded requests to both sides, more than once and with more or fewer at a time. So a
difference can be told from a server that does not keep its own seeds. One URL: that server as it is
against itself, or against itself with the fields of --b-body. No URL: --config is served and asked
with drafts of 5 tokens (A) and without (B). Ends with 0 if all texts were the same, and 1 if some
were not. Status 2 means that a server could not be asked, or an answer did not come.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from loadtest.client.prompt_file import DEFAULT_PROMPTS, Prompt, read_prompts, tasks_of
from loadtest.report.machine import ROOT
from loadtest.report.record import head, write_json
from loadtest.same.outcome import UNASKED, Outcome, compare
from loadtest.same.plan import DELIVERIES, ROUTES, Plan, SideName
from loadtest.same.report import content, lines
from loadtest.same.sides import Address, CannotAsk, Patience
from loadtest.service.served import POD_ENVIRONMENT, served

_PROGRAM = "python -m loadtest.same"
# Drafts must take part on a server of ours: the planner may find that they do not pay there.
_DRAFTS: Mapping[str, Any] = {"speculation": {"k": 5}}
_NO_DRAFTS: Mapping[str, Any] = {"speculation": {"enabled": False}}


def main(argv: Sequence[str] | None = None) -> int:
    """Compare from the command line; see above for the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = _parse(words)
    try:
        prompts = _chosen(arguments)
        with _addresses(arguments) as addresses:
            outcome = _compare(_plan(arguments, prompts, addresses), addresses, arguments)
    except (CannotAsk, OSError, RuntimeError, ValueError) as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)
        return UNASKED
    for line in lines(outcome, arguments.show):
        print(line)
    first = head(_PROGRAM, words, vars(arguments))
    write_json(arguments.output, {**first, **content(outcome, addresses)})
    return outcome.status


def _compare(
    plan: Plan, addresses: Mapping[SideName, Address], arguments: argparse.Namespace
) -> Outcome:
    patience = Patience(timeout_s=arguments.timeout, num_retries=arguments.retries)
    num_answers = len(plan.questions()) * len(plan.ways())
    with tqdm(total=num_answers, unit="answer") as bar:
        return asyncio.run(
            compare(plan, addresses, patience, num_located=arguments.locate, on_read=bar.update)
        )


@contextmanager
def _addresses(arguments: argparse.Namespace) -> Iterator[dict[SideName, Address]]:
    """Yield the sides; there is no B where it would be nothing but A."""
    urls = list(arguments.url)
    usual = ({}, {}) if urls else (_DRAFTS, _NO_DRAFTS)
    given = (arguments.a_body, arguments.b_body)
    fields = [default if own is None else own for own, default in zip(given, usual, strict=True)]
    if len(urls) > 2:
        raise ValueError(f"--url is given {len(urls)} times, at most twice are allowed")
    if not urls:
        with served(arguments.config, environment=POD_ENVIRONMENT) as service:
            yield _sides([service.base_url], fields, arguments)
    else:
        yield _sides(urls, fields, arguments)


def _sides(
    urls: Sequence[str], fields: Sequence[Mapping[str, Any]], arguments: argparse.Namespace
) -> dict[SideName, Address]:
    a = Address(
        url=urls[0],
        model=arguments.a_model,
        key_variable=arguments.a_key_env,
        fields=fields[0],
    )
    b = Address(
        url=urls[-1],
        model=arguments.b_model,
        key_variable=arguments.b_key_env,
        fields=fields[1],
    )
    is_other = len(urls) == 2 or b != a
    return {"A": a, "B": b} if is_other else {"A": a}


def _plan(
    arguments: argparse.Namespace, prompts: Sequence[Prompt], sides: Mapping[SideName, Address]
) -> Plan:
    plan = Plan(
        prompts=prompts,
        temperatures=list(dict.fromkeys(arguments.temperature)),
        num_seeds=arguments.seeds,
        base_seed=arguments.seed,
        max_tokens=arguments.tokens,
        sides=list(sides),
        routes=list(dict.fromkeys(arguments.route)),
        deliveries=list(dict.fromkeys(arguments.delivery)),
        concurrencies=list(dict.fromkeys(arguments.concurrency)),
        num_runs=arguments.runs,
    )
    if not plan.questions():
        raise ValueError("no question is left: the prompts are chats, the route is for plain texts")
    return plan


def _chosen(arguments: argparse.Namespace) -> list[Prompt]:
    prompts = read_prompts(arguments.prompts, per_task=arguments.per_task)
    tasks = tasks_of(prompts)
    if unknown := [task for task in arguments.task or () if task not in tasks]:
        raise ValueError(f"no prompt has the task {unknown[0]!r}; there are {', '.join(tasks)}")
    return [prompt for prompt in prompts if not arguments.task or prompt.task in arguments.task]


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM, description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    _add_sides(parser)
    asked = parser.add_argument_group("what is asked")
    asked.add_argument("--prompts", type=Path, default=DEFAULT_PROMPTS, help="JSON lines")
    asked.add_argument("--task", nargs="+", help="only these tasks of the file")
    asked.add_argument("--per-task", type=_positive, help="prompts of each task; default: all")
    asked.add_argument("--temperature", type=_at_least_zero, nargs="+", default=[0.0, 0.7, 1.0])
    asked.add_argument("--tokens", type=_positive, default=64, help="of an answer, at most")
    asked.add_argument("--seeds", type=_positive, default=1, help="of each prompt above T=0")
    asked.add_argument("--seed", type=int, default=1, help="of those seeds and of the order")
    how = parser.add_argument_group("how it is asked")
    how.add_argument("--route", nargs="+", choices=list(ROUTES), default=["chat"])
    how.add_argument("--delivery", nargs="+", choices=DELIVERIES, default=["stream"])
    how.add_argument("--concurrency", type=_positive, nargs="+", default=[1, 8])
    how.add_argument("--runs", type=_positive, default=2, help="1: no floor is measured")
    how.add_argument("--timeout", type=_at_least_zero, default=300.0, help="of an answer, seconds")
    how.add_argument("--retries", type=_count, default=3, help="after a lost or refused answer")
    parser.add_argument("--locate", type=_count, default=20, help="look for so many tokens")
    parser.add_argument("--show", type=_count, default=10, help="print so many differences")
    parser.add_argument("--output", type=Path, help="JSON file for the result")
    return parser.parse_args(argv)


def _add_sides(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the two sides")
    group.add_argument("--url", action="append", default=[], help="once or twice: A, then B")
    group.add_argument("--config", type=Path, default=ROOT / "configs" / "demo.yaml")
    for side in ("a", "b"):
        group.add_argument(f"--{side}-model", default="", help="default: the first it lists")
        group.add_argument(
            f"--{side}-key-env", default="", help="variable of the environment with its API key"
        )
        group.add_argument(
            f"--{side}-body",
            type=_fields,
            help="JSON object of further fields of its requests; null leaves a field out",
        )


def _fields(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text}")
    return fields


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 0, got {text!r}")
    return int(text)


def _at_least_zero(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, got {text!r}")
    return value


if __name__ == "__main__":
    sys.exit(main())
