"""Random requests to the router: every field a client can set, in every combination."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import msgspec

from deployments.api.choices import choices_of
from deployments.api.sampling_terms import bad_word_ids
from loadtest.fuzz.engines.grammars import random_grammar
from loadtest.fuzz.engines.pair import VOCAB_SIZE, fuzz_tokenizer
from models.protocol.messages import Sampling, Verification
from models.protocol.rules import COUPLED, RULES
from router.drafters.registry import DRAFTERS
from router.types import GenerationRequest, SpeculationSettings

_MAX_PROMPT = 120  # tokens
_MAX_TOKENS = 40
_WORDS = ("the", " dog", "a", "ball", " red", "0", ".", "in", "é")
_STOPS = (".", " the", "\n", "an", "12", "e", '"', "zz")
_MAX_K = 8
_RULES: tuple[Verification, ...] = (COUPLED.name, *RULES)  # coupled twice as often


def random_requests(
    rng: random.Random, num_requests: int, *, verification: Verification | None = None
) -> list[GenerationRequest]:
    """Requests whose prompts share beginnings; one of several choices counts as several."""
    stems = [random_ids(rng, rng.randint(1, 90)) for _ in range(3)]
    salts = ("", "", "salt", f"own-{rng.getrandbits(16)}")
    requests: list[GenerationRequest] = []
    while len(requests) < num_requests:
        request = _request(rng, f"r{len(requests)}", stems, salts, verification)
        num_choices = rng.choice((1, 1, 1, 1, 2, 3))
        requests += choices_of([request], num_choices, is_stream=rng.random() < 0.5)
    return requests


def undrafted(request: GenerationRequest) -> GenerationRequest:
    """Return the same request with speculation switched off, under another id."""
    return dataclasses.replace(
        request,
        request_id=f"{request.request_id}-alone",
        speculation=SpeculationSettings(enabled=False),
    )


def random_ids(rng: random.Random, num_ids: int) -> list[int]:
    """Token ids, with repetitions such as prompt lookup finds."""
    ids: list[int] = []
    while len(ids) < num_ids:
        if len(ids) > 4 and rng.random() < 0.3:
            start = rng.randrange(len(ids) - 2)
            ids += ids[start : start + rng.randint(2, 12)]
        else:
            ids.append(rng.randrange(2, VOCAB_SIZE))
    return ids[:num_ids]


def _request(
    rng: random.Random,
    name: str,
    stems: Sequence[list[int]],
    salts: Sequence[str],
    verification: Verification | None,
) -> GenerationRequest:
    stem = rng.choice(stems)
    prompt = stem[: rng.randint(1, len(stem))] + random_ids(rng, rng.randint(0, 30))
    max_tokens = rng.randint(1, _MAX_TOKENS)
    grammar = random_grammar(rng) if rng.random() < 0.4 else None
    if grammar is not None:
        max_tokens += _MAX_TOKENS  # so that most of them end
    tokenizer = fuzz_tokenizer()
    request = GenerationRequest(
        request_id=name,
        prompt_ids=tuple(prompt[:_MAX_PROMPT]),
        sampling=random_sampling(rng, max_tokens, verification),
        eos_ids=tokenizer.eos_ids,
        max_tokens=max_tokens,
        stop=tuple(rng.sample(_STOPS, rng.randint(1, 3))) if rng.random() < 0.25 else (),
        grammar=grammar,
        ignore_eos=grammar is None and rng.random() < 0.1,
        stop_token_ids=tuple(random_ids(rng, rng.randint(1, 60))) if rng.random() < 0.2 else (),
        includes_stop=rng.random() < 0.3,
        cache_salt=rng.choice(salts),
        speculation=_speculation(rng),
    )
    return _of_list(rng, request) if grammar is None and rng.random() < 0.2 else request


def _of_list(rng: random.Random, request: GenerationRequest) -> GenerationRequest:
    """Change the request to one of a list of texts, with matching fields."""
    stem = random_ids(rng, 4)
    choices = {
        tuple((stem[: rng.randint(0, 4)] + random_ids(rng, rng.randint(1, 9)))[: rng.randint(1, 9)])
        for _ in range(rng.randint(1, 12))
    }
    return dataclasses.replace(
        request,
        choices=tuple(sorted(choices)),
        ignore_eos=False,
        sampling=msgspec.structs.replace(request.sampling, min_tokens=0, bad_words=()),
    )


def random_sampling(
    rng: random.Random, max_tokens: int, verification: Verification | None = None
) -> Sampling:
    """Terms of drawing; each is off more often than on, so that they meet in all combinations."""

    def maybe(share: float, low: float, high: float, off: float) -> float:
        return rng.uniform(low, high) if rng.random() < share else off

    sampling = Sampling(
        temperature=rng.choice((0.0, 0.0, 0.3, 0.7, 1.0, 1.0, 1.5, 2.0)),
        top_p=maybe(0.3, 0.05, 1.0, 1.0),
        top_k=rng.choice((1, 2, 5, 40, 5000)) if rng.random() < 0.3 else 0,
        min_p=maybe(0.2, 0.0, 0.5, 0.0),
        presence_penalty=maybe(0.2, -2.0, 2.0, 0.0),
        frequency_penalty=maybe(0.2, -2.0, 2.0, 0.0),
        repetition_penalty=maybe(0.2, 0.5, 2.0, 1.0),
        seed=rng.choice((0, 2**64 - 1, rng.getrandbits(64), rng.getrandbits(32))),
        verification=verification or _RULES[rng.randrange(len(_RULES))],
        num_logprobs=rng.randint(0, 20) if rng.random() < 0.4 else -1,
        num_prompt_logprobs=rng.randint(0, 5) if rng.random() < 0.2 else -1,
    )
    if rng.random() < 0.3:
        biased = {rng.randrange(VOCAB_SIZE): rng.uniform(-20, 20) for _ in range(8)}
        biased[0] = rng.uniform(-5, 25)  # eos, which random texts hardly ever draw
        sampling = msgspec.structs.replace(sampling, logit_bias=tuple(biased.items()))
    if rng.random() < 0.2:
        sampling = msgspec.structs.replace(sampling, min_tokens=rng.randint(1, max_tokens))
    if rng.random() < 0.2:
        words = rng.sample(_WORDS, rng.randint(1, 4))
        bad = bad_word_ids(words, fuzz_tokenizer())
        bad += tuple(tuple(random_ids(rng, rng.randint(1, 2))) for _ in range(3))
        sampling = msgspec.structs.replace(sampling, bad_words=bad)
    return sampling


def _speculation(rng: random.Random) -> SpeculationSettings:
    return SpeculationSettings(
        num_speculative_tokens=rng.choice((None, None, *range(_MAX_K + 1))),
        drafter=rng.choice((None, *DRAFTERS)),
    )
