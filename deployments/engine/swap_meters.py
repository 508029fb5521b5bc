"""Metrics of a swap of the draft model: its phase, and the counts of both models."""

from __future__ import annotations

from deployments.engine.swap import PHASES, SwapState
from deployments.serve.instruments import Meters
from deployments.serve.metrics import Metric, Table, counter, gauge

METRICS: tuple[Metric[SwapState], ...] = (
    gauge(
        "outrider:draft_swap",
        "Where the newest swap of the draft model is: 1 at its state, 0 at the others",
        lambda state: {(phase,): state.phase == phase for phase in PHASES},
        "state",
    ),
    counter(
        "outrider:draft_swap_tokens",
        "Tokens of texts that the old and the new draft model were asked about, by whether they "
        "said them",
        lambda state: {
            (model, said): number
            for model, counts in (("old", state.old), ("new", state.new))
            for said, number in counts.by_said().items()
        },
        "model",
        "said",
    ),
)


class SwapMeters:
    """The instruments of a replica of Draft that tell of its newest swap.

    Attributes:
        is_refused: whether the newest `user_config` was; published with the state.
    """

    def __init__(self, meters: Meters) -> None:
        self._table = Table(meters, METRICS)
        self._refused = meters.gauge(
            "outrider:draft_swap_refused",
            "1: the newest user_config of the draft model was refused and changed nothing",
        )
        self.is_refused = False
        self._state = SwapState()
        self.publish(self._state)

    def publish(self, state: SwapState) -> None:
        """Take in a swap's state. Call it every second or so."""
        if state is not self._state:
            self._state = state
            self._table.begin_anew()
        self._refused.set(self.is_refused)
        self._table.follow(state)
