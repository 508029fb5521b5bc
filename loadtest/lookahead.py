"""What look-aheads cost and bring: CDSL, CDLH and its cheaper form beside greedy, in one process.

    python -m loadtest.lookahead --output loadtest/results/lookahead-demo.json

Every way answers every prompt, one at a time, by turns. A prompt asks for a story with some words,
and the reward is the share of them that appear, by their stems. A *pass* is one of the target, for
all roll-outs that are in it; a *step* is what one roll-out has of it. Goals are those of the paper
(2412.10418) for speed, and what must hold for satisfaction.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from deployments.llm import LLM, SamplingParams
from loadtest.bench.claims import Claim
from loadtest.report.interleaved import interleave, median_ratio
from loadtest.report.pairs import PairPath
from loadtest.report.record import head, write_json
from models.rewards.registry import Rewards

_MAX_MODEL_LEN = 512
_WORDS = (  # the subject of the story, then what must be in it
    ("a dog", "dog", "ball", "tree"),
    ("a girl", "girl", "park", "happy"),
    ("a cat", "cat", "box", "play"),
    ("a bird", "bird", "fly", "friend"),
    ("a boy", "boy", "water", "mom"),
    ("a bear", "bear", "forest", "sad"),
    ("a fish", "fish", "big", "smile"),
    ("a car", "car", "red", "toy"),
)
GREEDY, CDLH, CDLH_WHOLE, CDSL = "greedy", "cdlh", "cdlh, whole roll-outs", "cdsl"


@dataclass(frozen=True)
class Terms:
    """What all ways but greedy have in common, and the thresholds of CDSL."""

    length: int
    candidates: int
    accept_threshold: float
    reward_threshold: float
    reward_weight: float

    def of(self, way: str, concepts: Sequence[str]) -> dict[str, Any] | None:
        """The request's `lookahead`; None for greedy."""
        if way == GREEDY:
            return None
        method = CDSL if way == CDSL else CDLH
        commit = "rollout" if way == CDLH_WHOLE else "token"
        return {"method": method, "commit": commit, "reward": reward_of(concepts)} | asdict(self)


@dataclass(frozen=True)
class Run:
    """All prompts in one way, once."""

    seconds: float
    num_tokens: int
    num_passes: int  # of the target
    num_steps: int  # a pass counts once for each roll-out in it
    soft: tuple[float, ...]  # of each prompt
    hard: tuple[bool, ...]
    states: Mapping[str, int]


def reward_of(concepts: Sequence[str]) -> dict[str, Any]:
    """The reward of one prompt."""
    return {"kind": "concepts", "concepts": list(concepts)}


def run(llm: LLM, way: str, terms: Terms, num_prompts: int, max_tokens: int) -> Run:
    """Answer all prompts, one after another."""
    before, began_s = llm.loads()["target"].num_passes, time.perf_counter()
    num_tokens = num_steps = 0
    soft, hard, states = [], [], dict[str, int]()
    for subject, *concepts in _WORDS[:num_prompts]:
        asked = f"Write a short story about {subject}."
        lookahead = terms.of(way, concepts)
        fields = {} if lookahead is None else {"lookahead": lookahead}
        params = SamplingParams(temperature=0, max_tokens=max_tokens, **fields)
        chat = [{"role": "user", "content": asked}]
        [output] = llm.chat(chat, params, use_tqdm=False)
        [answer] = output.outputs
        num_tokens += len(answer.token_ids)
        scored = Rewards().make(reward_of(concepts)).score(answer.text, "", is_end=True)
        soft.append(scored.score)
        hard.append(scored.is_met)
        if answer.lookahead is not None:
            num_steps += answer.lookahead.num_target_passes
            for state, visits in answer.lookahead.states.items():
                states[state] = states.get(state, 0) + visits
    elapsed_s = time.perf_counter() - began_s
    num_passes = llm.loads()["target"].num_passes - before
    steps = num_steps or num_passes
    return Run(elapsed_s, num_tokens, num_passes, steps, tuple(soft), tuple(hard), states)


def line_of(way: str, runs: Sequence[Run]) -> dict[str, Any]:
    """One way's figures; counts are the same in every turn."""
    first = runs[0]
    return {
        "way": way,
        "seconds": statistics.median(one.seconds for one in runs),
        "tokens": first.num_tokens,
        "passes_per_token": first.num_passes / first.num_tokens,
        "steps_per_token": first.num_steps / first.num_tokens,
        "soft": statistics.mean(first.soft),
        "hard": statistics.mean(first.hard),
        "states": dict(first.states),
        "runs": [one.num_tokens / one.seconds for one in runs],
    }


def claims_of(lines: Mapping[str, Mapping[str, Any]]) -> list[Claim]:
    """Speed of CDSL over CDLH, and what it satisfies beside CDLH and greedy."""
    cdsl, cdlh, greedy = lines[CDSL], lines[CDLH], lines[GREEDY]
    speed = median_ratio(cdsl["runs"], cdlh["runs"])
    passes = cdlh["passes_per_token"] / cdsl["passes_per_token"]
    steps = cdlh["steps_per_token"] / cdsl["steps_per_token"]
    return [
        Claim("tokens/s of cdsl / of cdlh", speed, "at least", 2.2),
        Claim("target passes a token of cdlh / of cdsl", passes, "at least", 2.2),
        Claim("target steps a token of cdlh / of cdsl", steps, "at least", 2.2),
        Claim("hard satisfaction, cdsl - cdlh", cdsl["hard"] - cdlh["hard"], "at least", -0.03),
        Claim("hard satisfaction, cdsl - greedy", cdsl["hard"] - greedy["hard"], "at least", 0.1),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bench from the command line."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="loadtest.lookahead", description=__doc__)
    parser.add_argument("--pair", default="models/demo", help="[LABEL=]DIR")
    parser.add_argument("--prompts", type=int, default=len(_WORDS), choices=range(1, 9))
    parser.add_argument("--tokens", type=int, default=48, help="of each answer, at most")
    parser.add_argument("--repeats", type=int, default=3, help="of each way, by turns")
    parser.add_argument("--length", type=int, default=8, help="of a draft and of a roll-out")
    parser.add_argument("--candidates", type=int, default=4)
    parser.add_argument("--accept-threshold", type=float, default=0.5)
    parser.add_argument("--reward-threshold", type=float, default=0.5)
    parser.add_argument("--reward-weight", type=float, default=8.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, help="JSON")
    asked = parser.parse_args(words)
    terms = Terms(
        asked.length,
        asked.candidates,
        asked.accept_threshold,
        asked.reward_threshold,
        asked.reward_weight,
    )
    pair = PairPath.parse(asked.pair).path
    with LLM(
        pair / "target", pair / "draft", num_threads=asked.threads, max_model_len=_MAX_MODEL_LEN
    ) as llm:
        for way in (GREEDY, CDSL):  # what is first met takes longer
            run(llm, way, terms, 1, asked.tokens)
        ways = {
            way: partial(run, llm, way, terms, asked.prompts, asked.tokens)
            for way in (GREEDY, CDLH, CDLH_WHOLE, CDSL)
        }
        runs = interleave(ways, asked.repeats)
    lines = {way: line_of(way, given) for way, given in runs.items()}
    claims = claims_of(lines)
    for line in lines.values():
        print(json.dumps(line))
    for claim in claims:
        print(claim)
    result = head("python -m loadtest.lookahead", words, vars(asked))
    records = [claim.record() for claim in claims]
    write_json(asked.output, result | {"lines": list(lines.values()), "claims": records})
    return 0


if __name__ == "__main__":
    sys.exit(main())
