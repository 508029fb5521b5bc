"""Metrics of a swap of the draft model: its phase, and the counts of both models."""

from __future__ import annotations

from deployments.engine.swap import PHASES, SwapState
from deployments.serve.instruments import Meters
from router.comparing.comparison import ReplayCounts


class SwapMeters:
    """The instruments of a replica of Draft that tell of its newest swap.

    Attributes:
        is_refused: whether the newest `user_config` was; published with the state.
    """

    def __init__(self, meters: Meters) -> None:
        self._phase = meters.gauge(
            "outrider:draft_swap",
            "Where the newest swap of the draft model is: 1 at its state, 0 at the others",
            ["state"],
        )
        self._refused = meters.gauge(
            "outrider:draft_swap_refused",
            "1: the newest user_config of the draft model was refused and changed nothing",
        )
        self.is_refused = False
        self._tokens = meters.counter(
            "outrider:draft_swap_tokens",
            "Tokens of texts that the old and the new draft model were asked about, and of these "
            "said by the model",
            ["model", "said"],
        )
        self._state = SwapState()
        self._published: dict[tuple[str, str], int] = {}
        self.publish(self._state)

    def publish(self, state: SwapState) -> None:
        """Take in a swap's state. To be called every second or so."""
        if state is not self._state:
            self._state, self._published = state, {}
        for phase in PHASES:
            self._phase.set(float(state.phase == phase), state=phase)
        self._refused.set(float(self.is_refused))
        self._count("old", state.old)
        self._count("new", state.new)

    def _count(self, model: str, counts: ReplayCounts) -> None:
        missed = counts.num_tokens - counts.num_matched
        for said, total in (("yes", counts.num_matched), ("no", missed)):
            grown = total - self._published.get((model, said), 0)
            self._published[model, said] = total
            self._tokens.add(grown, model=model, said=said)
