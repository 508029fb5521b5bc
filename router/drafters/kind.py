"""Describes a drafter: everything that others ask about it, and how one is made.

A drafter is one file of this folder with a `ports.Drafter` and a `DrafterKind`, and one line in
`registry.py`. Planning, costs, statistics, config checks and the HTTP API read the description;
none of them knows a drafter by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from models.protocol.token_sequence import TokenSequence
from router.drafters.repeats.suffix_index import SuffixIndex
from router.drafters.repeats.text_memory import TextMemory
from router.limits import SessionLimits, SpeculationLimits
from router.ports import Drafter, DrafterTraits, TaskClass
from router.remote.engine import EngineClient


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterContext:
    """The inputs that a drafter of one session may use.

    `committed` only ever grows. `engine` opens a client on the engines of a pool (`uses_pool`).
    `num_branches` is what a draft may be followed by ahead of its verdict, as planned now. `memory`
    is shared by all sessions. `other_texts` are those that may be drafted from beside the
    committed one: recent answers.
    """

    session_id: str
    committed: TokenSequence
    eos_ids: tuple[int, ...]
    speculation: SpeculationLimits
    limits: SessionLimits
    engine: Callable[[str], EngineClient]
    task_class: TaskClass = "free"
    num_branches: Callable[[], int] = int
    memory: TextMemory = field(default_factory=TextMemory)
    other_texts: Callable[[], Iterable[SuffixIndex]] = tuple


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterKind:
    """One kind of drafter.

    Args:
        traits: its name, what it costs, how much of it is accepted before anything is known.
        label: its name in sentences.
        make: a drafter for one session. It may begin to connect at once, in the background.
        uses_pool: engines it drafts with, by the name of their deployment; "": none.
        is_switched_on: whether the limits of the deployment allow it.
        needs: what the config must have for it, in the config's words.
        absence: why it is refused where it is not available, for the client that asked for it.
        fills_in: whether it drafts the rounds that the drafters before it leave empty.
    """

    traits: DrafterTraits
    label: str
    make: Callable[[DrafterContext], Drafter]
    uses_pool: str = ""
    is_switched_on: Callable[[SpeculationLimits], bool] = lambda limits: True
    needs: str = ""
    absence: str = "is not available here"
    fills_in: bool = False

    @property
    def name(self) -> str:
        """Its name in requests, answers, metrics and config."""
        return self.traits.name

    def is_available(self, allowed: SpeculationLimits, pools: Collection[str]) -> bool:
        """Return whether it can draft within these limits in a deployment that has these pools."""
        return self.is_switched_on(allowed) and (not self.uses_pool or self.uses_pool in pools)


def before_eos(tokens: Sequence[int], eos_ids: Collection[int]) -> Sequence[int]:
    """Return the tokens before the first eos: a draft ends there, because nothing follows it."""
    for index, token_id in enumerate(tokens):
        if token_id in eos_ids:
            return tokens[:index]
    return tokens
