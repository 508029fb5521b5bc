"""Builds the service of the HTTP routes from the router's config and pools.

It knows neither Ray nor sockets.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from deployments.api.health import HealthProbe
from deployments.api.http import HttpService, no_spans
from deployments.api.keys import ApiKeys, Tenant
from deployments.api.observer import Sink
from deployments.api.requests import ServedModel
from deployments.api.schemas.sampling_defaults import sampling_defaults
from deployments.config.schema import RouterConfig
from deployments.ingress.admission import AdmissionControl
from deployments.ingress.capture import Capture, CapturingGenerator
from deployments.ingress.charges import Charges
from deployments.ingress.loss_metrics import LossMetrics
from deployments.ingress.metrics import RequestMetrics
from deployments.ingress.planning_metrics import PlanningMetrics
from deployments.ingress.quarantine import Quarantine
from deployments.ingress.spans import request_spans
from deployments.ingress.traffic import TrafficLine
from deployments.serve.instruments import Meters, Mirror
from models.heads.config import TargetHeads
from models.protocol.errors import Overloaded
from models.text.tokenizer import Tokenizer
from models.text.tools.prompt import turn_formats
from router.drafters.choice import drafter_names
from router.generator import SpeculativeGenerator
from router.ports import ConstraintPool, EnginePool
from router.rollout_places import RolloutPlaces
from router.services import Services
from router.types import GenerationRequest

logger = logging.getLogger("ray.serve")

_PUBLISH_PERIOD_S = 1.0
_PERIODS_PER_LINE = 60
_HEALTH_TIMEOUT_S = 10.0  # a round under full load on a laptop takes well under a second


@dataclass(frozen=True, slots=True)
class MetricsElsewhere:
    """Metrics beside those of this process at GET /metrics.

    Attributes:
        mirror: where they are written as well.
        others: the metrics of other processes, for the same page.
    """

    mirror: Mirror | None = None
    others: Callable[[], Awaitable[bytes]] | None = None


_NOWHERE = MetricsElsewhere()


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """Facts of the target that a router must know beforehand.

    Attributes:
        heads: what drafts in its own process; None: nothing.
        vocabulary: digest of the token ids that it must have; "": any.
        adapters: names of those that it is served with.
    """

    heads: TargetHeads | None = None
    vocabulary: str = ""
    adapters: tuple[str, ...] = ()


_PLAIN = TargetFacts()


def services_of(config: RouterConfig, **fields: Any) -> Services:
    """Return the services of a router: limits of its config, with pools and other `fields`."""
    return Services(
        **{
            "speculation": config.speculation,
            "limits": config.timeouts,
            "rollouts": RolloutPlaces(config.max_rollouts, config.max_rollout_slowdown),
            **fields,
        }
    )


class RouterService:
    """The service of a router over given pools. Make it in the event loop that will serve.

    Args:
        config: a resolved one: `tokenizer_path` and `max_model_len` are filled in.
        target: the replicas that verify.
        drafts: the replicas of each draft model, by the name of their pool; without any only
            repeated text is drafted, where that is on.
        constraint: the replicas that guard grammars; None: requests with one are refused.
        facts: what is known of the target.
        elsewhere: where else metrics go, and come from.

    A client that takes nothing for `token_gap_s` counts as gone, where the server's writes wait for
    the client. Through Serve's proxy they never do.

    Raises:
        ValueError: the tokenizer or the file of API keys cannot be read, answers are to be kept
            where nothing can be written, or spans are to be sent
            and the packages for that are missing.
    """

    def __init__(
        self,
        config: RouterConfig,
        *,
        target: EnginePool,
        drafts: Mapping[str, EnginePool],
        constraint: ConstraintPool | None,
        facts: TargetFacts = _PLAIN,
        elsewhere: MetricsElsewhere = _NOWHERE,
    ) -> None:
        tokenizer = Tokenizer.load(config.tokenizer_path)
        pools = {"target_pool": target, "draft_pools": drafts, "constraint_pool": constraint}
        services = services_of(config, heads=facts.heads, **pools)
        self._drafts, self._facts = drafts, facts
        self._generator = SpeculativeGenerator(services, max_model_len=config.max_model_len)
        self._capture = Capture(config.capture) if config.capture.folder else None
        keys = ApiKeys(Path(config.api_keys_file)) if config.api_keys_file else None
        meters = Meters({"model_name": config.model_name}, elsewhere.mirror)
        self.metrics = RequestMetrics(
            meters, (lambda: 0) if keys is None else (lambda: keys.num_refused)
        )
        self._spans = request_spans(config.otlp_traces_endpoint, config.model_name)
        self._failing: set[Callable[[], None]] = set()  # steps of publishing, last time
        self.traffic = TrafficLine(lambda: self.metrics.load)
        planner = services.planner
        self.planning = PlanningMetrics(
            meters, planner.stats, planner.gains.by_task, services.comparison.counts
        )
        self.losses = services.losses
        self.loss_metrics = LossMetrics(meters, services.losses)
        self._admission = AdmissionControl(
            max_sessions=config.max_sessions,
            max_queued=config.max_queued_sessions,
            queue_wait_s=config.timeouts.queue_wait_s,
            reserved=config.reserved_sessions,
            on_load=self.metrics.set_load,
        )
        self._charges, self._quarantine = Charges(meters), Quarantine()
        self.http = HttpService(
            model=self._model(config, tokenizer, created=int(time.time())),
            generator=self._generator
            if self._capture is None
            else CapturingGenerator(self._generator, self._capture),
            slot=self._admission.slot,
            goes_first=self._admission.goes_first,
            sinks=(self.metrics, self.traffic),
            spans=no_spans if self._spans is None else self._spans.of,
            refuse_when_full=self._refuse_when_full,
            sinks_of=self._sinks_of,
            metrics=self._metrics_page,
            other_metrics=elsewhere.others,
            health=self._health(tokenizer, config.model_name),
            api_keys=keys,
            check_grammar=None if constraint is None else self._generator.check_grammar,
            body_limit_bytes=config.body_limit_bytes,
            send_timeout_s=config.timeouts.token_gap_s,
            transport=config.http,
        )

    def _health(self, tokenizer: Tokenizer, model: str) -> HealthProbe:
        """Return a probe that takes no slot: a full router may well have a target that answers."""
        return HealthProbe(
            self._generator,
            tokenizer,
            model,
            timeout_s=_HEALTH_TIMEOUT_S,
            last_progress_s=lambda: self.metrics.last_progress_s,
        )

    def close(self) -> None:
        """Send spans and write answers that wait, for a bounded time. Blocks."""
        if self._spans is not None:
            self._spans.close()
        if self._capture is not None:
            self._capture.close()

    def _model(self, config: RouterConfig, tokenizer: Tokenizer, created: int) -> ServedModel:
        drafters = drafter_names(config.speculation, self._drafts, self._facts.heads)
        adapters = self._facts.adapters
        return served_model(
            config, tokenizer, created=created, drafters=drafters, adapters=adapters
        )

    def _sinks_of(self, tenant: Tenant, request: GenerationRequest) -> Sequence[Sink]:
        return (*self._charges.of(tenant, request), self._quarantine.sink(request))

    def _refuse_when_full(self, tenant: Tenant) -> None:
        try:
            self._charges.refuse_when_empty(tenant)
            self._admission.refuse_when_full(tenant)
        except Overloaded as error:
            for sink in self.http.sinks:
                sink.refused(error.code)
            raise

    def publish(self) -> None:
        """Write all metrics as they stand now; what fails is logged, and the rest is written."""
        self._run_all(self.metrics.publish, self.planning.publish, self.loss_metrics.publish)

    async def publish_forever(self, period_s: float = _PUBLISH_PERIOD_S) -> None:
        """Publish every `period_s` seconds, for a mirror that forgets old values. Endless.

        The lines of the log about gains and traffic come once in `_PERIODS_PER_LINE` such periods.
        """
        for number in count(1):
            await asyncio.sleep(period_s)
            self.publish()
            if number % _PERIODS_PER_LINE == 0:
                self._run_all(self.planning.log_gain, self.traffic.log)

    def _run_all(self, *steps: Callable[[], None]) -> None:
        """Run each step; one that begins to fail is logged, and keeps the others from nothing."""
        for step in steps:
            try:
                step()
                self._failing.discard(step)
            except Exception:
                if step not in self._failing:
                    logger.exception("metrics: a step fails, the others go on")
                self._failing.add(step)

    def _metrics_page(self) -> bytes:
        self._run_all(self.planning.publish, self.loss_metrics.publish)
        return self.metrics.text()

    def set_limits(self, config: RouterConfig) -> None:
        """Apply the limits of `config`, which is the service's own but for its limits
        (`live_limits.LIVE_KEYS`). Requests that have begun keep those they began with."""
        model = self.http.model
        self.http.model = self._model(config, model.tokenizer, created=model.created)
        self.http.body_limit_bytes = config.body_limit_bytes
        self.http.send_timeout_s = config.timeouts.token_gap_s
        self._generator.set_limits(config.speculation, config.timeouts)
        self._admission.set_limits(
            max_sessions=config.max_sessions,
            max_queued=config.max_queued_sessions,
            queue_wait_s=config.timeouts.queue_wait_s,
            reserved=config.reserved_sessions,
        )


def served_model(
    config: RouterConfig,
    tokenizer: Tokenizer,
    *,
    created: int,
    drafters: tuple[str, ...] = (),
    adapters: tuple[str, ...] = (),
) -> ServedModel:
    """Return the model and its limits, as the routes know them.

    Args:
        config: a resolved one.
        tokenizer: the model's.
        created: Unix time, seconds.
        drafters: that requests may name.
        adapters: that requests may name as their model.

    Raises:
        ValueError: the default sampling cannot be read.
    """
    sampling = sampling_defaults(
        config.generation_config, tokenizer.generation_config, config.override_generation_config
    )
    if sampling.given:
        logger.info("%s: default sampling: %s", config.model_name, sampling)
    return ServedModel(
        name=config.model_name,
        tokenizer=tokenizer,
        max_model_len=config.max_model_len,
        created=created,
        default_max_tokens=config.default_max_tokens,
        max_tokens_limit=config.max_tokens_limit,
        max_choices=config.max_choices,
        max_choices_at_once=config.max_choices_at_once,
        max_logprob_entries=config.max_logprob_entries,
        max_num_speculative_tokens=config.speculation.max_num_speculative_tokens,
        verification=config.speculation.verification,
        formats=turn_formats(tokenizer.templates, config.tool_call_parser, config.reasoning_parser),
        drafters=drafters,
        adapters=adapters,
        sampling=sampling,
    )
