"""Chooses who drafts for a session: as the request asks, else the deployment, else as available.

The chosen drafter may leave rounds empty: prefilling, lost, rejoining, without room, outgrown by
the text. The first drafter after it that fills in drafts those rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import islice

import msgspec

from models.heads.config import TargetHeads
from models.protocol.errors import InvalidRequest
from models.protocol.messages import Sampling
from router.drafters.heads import check_heads, heads_alone, names_heads
from router.drafters.kind import DrafterKind
from router.drafters.registry import drafters_of
from router.limits import SpeculationLimits
from router.types import GenerationRequest, SpeculationSettings


def choose_drafters(
    wanted: SpeculationSettings,
    allowed: SpeculationLimits,
    pools: Collection[str],
    preferred: Callable[[Sequence[DrafterKind]], str] | None = None,
    heads: TargetHeads | None = None,
) -> tuple[DrafterKind, ...]:
    """Choose the drafters, in the order in which they are asked; empty: the session runs k = 0.

    Args:
        wanted: what the request says.
        allowed: the limits of the deployment.
        pools: deployments with engines to draft with.
        preferred: names one of several draft models, where nobody named a drafter; None: the first.
        heads: that the target drafts with, if a request names them: then nobody else drafts.

    Raises:
        InvalidRequest: the request names a drafter that this deployment has not.
    """
    _check(wanted, allowed, pools, heads)
    if not (wanted.enabled and allowed.enabled) or fixed_length(wanted, allowed) == 0:
        return ()
    if heads_alone(wanted, allowed):
        return ()
    name, models = wanted.drafter or allowed.method, draft_models(allowed, pools)
    if name is None and preferred is not None and len(models) > 1:
        name = preferred(models)
    return line_up(name, allowed, pools)


def draft_models(allowed: SpeculationLimits, pools: Collection[str]) -> list[DrafterKind]:
    """Return the available drafters that draft with engines of their own."""
    kinds = drafters_of(pools).values()
    return [kind for kind in kinds if kind.uses_pool and kind.is_available(allowed, pools)]


def drafter_names(
    allowed: SpeculationLimits, pools: Collection[str], heads: TargetHeads | None = None
) -> tuple[str, ...]:
    """Return the names of drafters that a request may ask for here."""
    kinds = drafters_of(pools).values()
    names = [kind.name for kind in kinds if kind.is_available(allowed, pools)]
    return tuple(names if heads is None else [*names, heads.kind])


def check_draft_names(allowed: SpeculationLimits, pools: Collection[str]) -> None:
    """Check that limits name draft models which are there.

    Raises:
        ValueError: one is not.
    """
    names = [kind.name for kind in draft_models(allowed, pools)]
    staged = [*allowed.drafted_by, *allowed.drafted_by.values()]
    for key, named in {"draft_shares": list(allowed.draft_shares), "drafted_by": staged}.items():
        for name in named:
            if name not in names:
                raise ValueError(
                    f"speculation.{key}: must name draft models "
                    f"({', '.join(names) or 'there is none'}), got {name!r}"
                )


def line_up(
    name: str | None, allowed: SpeculationLimits, pools: Collection[str]
) -> tuple[DrafterKind, ...]:
    """Return the drafter `name` (None: the preferred one) and one that fills in for it.

    Only available drafters are returned. The result is empty if `name` means heads, which draft in
    the target.
    """
    if names_heads(name):
        return ()
    kinds = list(drafters_of(pools).values())
    models = draft_models(allowed, pools)
    place = 0 if name is None else [kind.name for kind in kinds].index(name)
    chosen, *later = [*models, *kinds] if name is None else kinds[place:]
    line = [chosen] if chosen.is_available(allowed, pools) else []
    if line and chosen.traits.is_free:  # where it finds nothing, another that looks finds little
        return tuple(line)
    fill_ins = (kind for kind in later if kind.fills_in and kind.is_available(allowed, pools))
    return (*line, *islice(fill_ins, 1))


def fixed_length(wanted: SpeculationSettings, allowed: SpeculationLimits) -> int | None:
    """k where the request or the deployment fixes it, within the limit; None: chosen live."""
    fixed = wanted.num_speculative_tokens
    if fixed is None:
        fixed = allowed.fixed_length
    if fixed is None and allowed.max_num_speculative_tokens > 0:
        return None
    return min(fixed or 0, allowed.max_num_speculative_tokens)


def _check(
    wanted: SpeculationSettings,
    allowed: SpeculationLimits,
    pools: Collection[str],
    heads: TargetHeads | None,
) -> None:
    name, kinds = wanted.drafter, drafters_of(pools)
    if heads_alone(wanted, allowed):
        check_heads(wanted, heads, drafter_names(allowed, pools))
        return
    if name is None:
        return
    kind = kinds.get(name)
    if kind is None:
        known = [*kinds] if heads is None else [*kinds, heads.kind]
        raise InvalidRequest(
            f"speculation.drafter: must be one of {', '.join(known)}, got {name!r}",
            param="speculation.drafter",
        )
    if not kind.is_available(allowed, pools):
        raise InvalidRequest(
            f"speculation.drafter: {name!r} {kind.absence}", param="speculation.drafter"
        )


def draft_sampling(request: GenerationRequest, allowed: SpeculationLimits) -> Sampling:
    """Return the terms by which a draft model drafts for a request, without logprobs.

    A greedy draft is exact under each rule. `coupled` takes any draft. A token that was not sampled
    came for certain, so `rejection` accepts it with the target's own probability.
    """
    method = request.speculation.draft_sample_method or allowed.draft_sample_method
    sampling = msgspec.structs.replace(request.sampling, num_logprobs=-1, num_prompt_logprobs=-1)
    return sampling if method != "greedy" else msgspec.structs.replace(sampling, temperature=0.0)
