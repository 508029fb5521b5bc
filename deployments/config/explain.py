"""Puts a config into words: what goes where, what it takes, how far it drafts, what it admits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from deployments.config.cluster import Cluster, Node
from deployments.config.fit import DTYPE_BITS, ModelSizes, gigabytes
from deployments.config.placement import Placement, deployment_of
from deployments.config.schema import AppConfig, RouterConfig
from deployments.config.sections.models import ModelConfig, Models, section_of_draft
from models.heads.config import CHECKPOINT
from router.drafters.choice import line_up
from router.drafters.heads import names_heads

_TYPE_LABEL = "ray.io/accelerator-type"
_MOST_STEP = 0.1  # part of a target pass
# GB/s by the names that Ray gives GPUs in its labels, from NVIDIA's data sheets.
_GB_PER_S: Mapping[str, float] = {
    "T4": 320,
    "V100": 900,
    "L4": 300,
    "A10G": 600,
    "L40S": 864,
    "A100": 1555,
    "A100-40G": 1555,
    "A100-80G": 2039,
    "H100": 3350,
    "H200": 4800,
    "B200": 8000,
}
_EXAMPLE = "H100"  # where no GPU can be seen
_START_S = 30.0  # processes, imports, graphs
_READ_BYTES_PER_S = 1e9  # a fast network volume


def explanation(
    config: AppConfig,
    placements: list[Placement],
    sizes: Mapping[str, ModelSizes],
    unknown: Mapping[str, str],
) -> list[str]:
    """Lines for people.

    Args:
        config: what is explained.
        placements: of its deployments.
        sizes: by section, of the models whose files are here.
        unknown: by section, why nothing is known of the others.
    """
    details = {
        deployment_of(section): model_lines(model, sizes.get(section), unknown.get(section))
        for section, model in config.models.items()
    }
    details["Router"] = _router_lines(config)
    details["Constraint"] = [
        f"child processes: {config.constraint.num_children}, of at most "
        f"{config.constraint.memory_limit_mb} MB each; {config.constraint.max_sessions} sessions"
    ]
    lines = []
    for placement in placements:
        lines.append(f"{placement.name:<10} {_replicas(placement)}")
        lines += [f"{'':<11}{detail}" for detail in details[placement.name]]
    lines.append(f"{'k':<11}{_k_range(config)}")
    lines.append(f"{'in all':<11}{_in_all(placements)}")
    return lines


def admission_notes(
    config: AppConfig, placements: list[Placement], router: RouterConfig
) -> list[str]:
    """Say if routers let in more sessions than targets hold, at the fewest or the most replicas.

    A request that is let in and finds no place on a target waits `queue_wait_s` and gets 503. The
    routers' own queue would have said 429 at once.
    """
    by_name = {placement.name: placement for placement in placements}
    routers, targets = by_name["Router"], by_name["Target"]
    held_each, let_in_each = config.target.max_num_seqs, router.max_sessions
    spares = int(routers.has_spare), int(targets.has_spare)  # which have what a lost one had
    for num_routers, num_targets in (
        (routers.max_replicas - spares[0], targets.max_replicas - spares[1]),
        (routers.min_replicas - spares[0], targets.min_replicas - spares[1]),
    ):
        let_in, held = num_routers * let_in_each, num_targets * held_each
        if let_in > held:
            return [
                f"routers let in {num_routers} x {let_in_each} = {let_in} sessions "
                f"(router.max_sessions), targets hold {num_targets} x {held_each} = {held} "
                "(target.max_num_seqs): the rest wait router.timeouts.queue_wait_s, "
                f"{router.timeouts.queue_wait_s:g} s, and get 503, not 429"
            ]
    return []


def loading_s(num_bytes: float) -> float:
    """Return about how long a target of so many bytes of weights takes from its start, s."""
    return _START_S + num_bytes / _READ_BYTES_PER_S


def loss_notes(
    config: AppConfig, placements: Sequence[Placement], sizes: Mapping[str, ModelSizes]
) -> list[str]:
    """Say if streams would end before the only target is back.

    Its weights are read at a disk's rate, `_READ_BYTES_PER_S`, and its processes start before.
    """
    [target] = [placement for placement in placements if placement.name == "Target"]
    if target.min_replicas > 1 or "target" not in sizes:
        return []
    num_ranks = config.target.tensor_parallel_size
    takes_s = loading_s(sizes["target"].weight_bytes * num_ranks)
    failover_s = config.router.timeouts.failover_s
    if takes_s <= failover_s:
        return []
    return [
        f"one target, which takes some {takes_s:.0f} s to load: when it is lost, or replaced as a "
        f"key of args changed, streams end after router.timeouts.failover_s, {failover_s:g} s; "
        "raise it, or let Target have min_replicas: 2"
    ]


def drafting_notes(config: AppConfig) -> list[str]:
    """Say if texts may grow longer than the draft model can read."""
    speculation = config.router.speculation
    drafters = line_up(speculation.method, speculation, config.draft_pools)
    if not speculation.enabled or not any(kind.uses_pool for kind in drafters):
        return []
    limits = {"target.max_model_len": config.target.max_model_len}
    if config.router.max_model_len:
        limits["router.max_model_len"] = config.router.max_model_len
    name, longest = min(limits.items(), key=lambda item: item[1])
    drafts = {section_of_draft(pool): model for pool, model in config.draft_models.items()}
    others = " and ".join(kind.label for kind in drafters if not kind.uses_pool)
    what = f"are drafted for by {others} only" if others else "are not drafted for at all"
    return [
        f"{section}.max_model_len {draft.max_model_len} is below {name} {longest}: sessions longer "
        f"than {draft.max_model_len} tokens {what}"
        for section, draft in drafts.items()
        if draft.max_model_len < longest
    ]


def bandwidth_notes(
    config: AppConfig,
    placements: Sequence[Placement],
    sizes: Mapping[str, ModelSizes],
    cluster: Cluster,
) -> list[str]:
    """Say what a draft step and a target pass take at least, for a pair on GPUs.

    They read all weights once and do little else while rows are few. So they take at least the
    weights' bytes divided by the memory's bandwidth. A draft step of more than a tenth of a pass
    leaves little to gain. k = 5 then costs half a pass and more, for some 3.7 tokens at an
    acceptance of 0.8.

    Args:
        config: whose pair it is.
        placements: of its deployments.
        sizes: by section, of the models whose files are here.
        cluster: whose GPUs are looked at, where any can be seen.
    """
    draft = config.draft
    if draft is None or not {"target", "draft"} <= set(sizes):
        return []
    if not all(model.device.startswith("cuda") for model in (config.target, draft)):
        return []
    by_name = {placement.name: placement for placement in placements}
    gpus = {name: _gpu_of(by_name[name], cluster) for name in ("Draft", "Target")}
    step_ms, pass_ms = (
        _least_ms(sizes[name.lower()].weight_bytes, gpus[name] or _EXAMPLE)
        for name in ("Draft", "Target")
    )
    share = step_ms / pass_ms
    seen = "" if all(gpus.values()) else f" ({_EXAMPLE} is taken where no GPU can be seen)"
    line = (
        f"by memory bandwidth alone a draft step takes {step_ms:.2f} ms on "
        f"{gpus['Draft'] or _EXAMPLE} and a target pass {pass_ms:.2f} ms on "
        f"{gpus['Target'] or _EXAMPLE}{seen}: a step is {100 * share:.0f}% of a pass"
    )
    if share > _MOST_STEP:
        line += f"; above {100 * _MOST_STEP:.0f}% drafting has little to gain: take a smaller draft"
    return [line]


def thread_notes(config: Models, cluster: Cluster) -> list[str]:
    """Say that models have more threads than cores, where all are on one machine.

    Threads of a pass spin while they wait. Two models of two threads each on two cores were half
    as fast with drafts as with one each. One replica of each counts.
    """
    models = {f"{section}.num_threads": model for section, model in config.models_here.items()}
    on_cpu = {key: model for key, model in models.items() if model.device == "cpu"}
    num_threads = sum(model.num_threads * model.tensor_parallel_size for model in on_cpu.values())
    num_cores = sum(node.resources.get("CPU", 0.0) for node in cluster.nodes)
    is_alone = len(cluster.nodes) == 1 and not cluster.may_grow and num_cores >= 1
    does_spin = any(model.num_threads > 1 for model in on_cpu.values())
    if not (is_alone and does_spin) or num_threads <= num_cores:
        return []
    each = ", ".join(
        f"{key} {model.num_threads}"
        + (f" on {model.tensor_parallel_size} ranks" if model.tensor_parallel_size > 1 else "")
        for key, model in on_cpu.items()
    )
    return [
        f"{num_threads} threads of models on {num_cores:g} cores ({each}): threads that wait spin, "
        "so all are slower; give them fewer"
    ]


def _replicas(placement: Placement) -> str:
    fewest, most = placement.min_replicas, placement.max_replicas
    count = f"{fewest} to {most} replicas" if most != fewest else f"{fewest} replica"
    count += "s" if most == fewest != 1 else ""
    pieces = Counter(f"{_resources(unit)}{_where(labels)}" for unit, labels in placement.units)
    held = " + ".join(f"{n} x {piece}" if n > 1 else piece for piece, n in pieces.items())
    packed = f", {placement.strategy}" if len(placement.bundles) > 1 else ""
    spare = ", one of them a spare" if placement.has_spare else ""
    return f"{count} of {held}{packed}{spare}"


def _resources(unit: Mapping[str, float]) -> str:
    return "{" + ", ".join(f"{kind}: {amount:g}" for kind, amount in unit.items()) + "}"


def _where(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return " on nodes with " + ", ".join(f"{key}={value}" for key, value in labels.items())


def model_lines(model: ModelConfig, sizes: ModelSizes | None, unknown: str | None) -> list[str]:
    """Say how much one model takes: parameters, weights per rank, and KV cache."""
    quantization = model.quantization if sizes is None else sizes.quantization
    rounded = f", {quantization}" if quantization else ""
    ranks = f"{model.tensor_parallel_size} rank"
    ranks += "s" if model.tensor_parallel_size > 1 else ""
    head = f"{model.model_path}: {ranks} on {model.device}, {model.dtype}{rounded}"
    if sizes is None:
        return [head, f"sizes unknown: {unknown}", _kv_asked(model)]
    lines = [
        f"{head}; {sizes.num_parameters / 1e6:,.1f} M parameters, "
        f"{gigabytes(sizes.weight_bytes)} of weights per rank{_bits(model, sizes)}",
        *([sizes.source] if sizes.source else []),
        *([f"{_heads_named(model.heads)} in its process"] if model.heads else []),
        *([f"its first {model.early_exit} layers draft"] if model.early_exit else []),
    ]
    per_token = f"KV {gigabytes(sizes.kv_bytes_per_token)} per token and rank"
    if sizes.kv_tokens is None:
        return [*lines, f"{per_token}; {_kv_asked(model)}"]
    num_longest = sizes.kv_tokens // model.max_model_len
    lines.append(
        f"{per_token}; {sizes.kv_tokens} tokens are "
        f"{gigabytes(sizes.kv_tokens * sizes.kv_bytes_per_token)} per rank and hold {num_longest} "
        f"sessions of max_model_len {model.max_model_len}; {model.max_num_seqs} sessions at once"
    )
    return lines


def _heads_named(heads: str) -> str:
    own = "the checkpoint's own MTP layer drafts"
    return own if heads == CHECKPOINT else f"heads {heads} draft"


def _bits(model: ModelConfig, sizes: ModelSizes) -> str:
    """Say how many bits a weight takes on the average, scales included; "" if it is whole."""
    most = 0.95 * DTYPE_BITS[model.dtype]  # of what is rounded at all
    is_whole = not sizes.bits_a_weight or sizes.bits_a_weight > most
    return "" if is_whole else f" ({sizes.bits_a_weight:.1f} bits each)"


def _kv_asked(model: ModelConfig) -> str:
    if model.gpu_memory_utilization is not None:
        return (
            f"KV tokens: what {model.gpu_memory_utilization:g} of the GPU's memory leaves next to "
            "the weights"
        )
    if model.kv_cache_memory is not None:
        return f"KV tokens: what fits in {gigabytes(model.kv_cache_memory)} per rank"
    return f"KV tokens: {model.kv_cache_tokens}"


def _router_lines(config: AppConfig) -> list[str]:
    router = config.router
    window = router.max_model_len or config.target.max_model_len
    return [
        f"serves {router.model_name!r}; {router.max_sessions} sessions per replica, "
        f"{router.max_queued_sessions} more wait up to {router.timeouts.queue_wait_s:g} s, "
        "then 429",
        f"bodies up to {router.body_limit_bytes} bytes, {window} tokens of prompt and completion, "
        f"max_tokens up to {router.max_tokens_limit}, {router.max_choices} choices and "
        f"{router.max_logprob_entries} logprobs in one answer; "
        + ("API keys are asked for" if router.api_keys_file else "no API keys are asked for"),
    ]


def _k_range(config: AppConfig) -> str:
    speculation = config.router.speculation
    if not speculation.enabled:
        return "0: nothing is drafted"
    drafters = line_up(speculation.method, speculation, config.draft_pools)
    alone = speculation.method if names_heads(speculation.method) else None
    if not drafters and alone is None:
        return "0: nobody is there to draft"
    limit, asked = speculation.max_num_speculative_tokens, speculation.num_speculative_tokens
    extent = f"adaptive, 0 to {limit}" if asked == "adaptive" else f"{asked}"
    text = f"{extent}, drafted by {alone or drafters[0].name}"
    if drafters[1:]:
        text += f" ({' and '.join(kind.label for kind in drafters[1:])} while it is away)"
    return f"{text}; a request may ask for 0 to {limit}; {speculation.verification}"


def _in_all(placements: list[Placement]) -> str:
    parts = []
    for kind in ("CPU", "GPU"):
        amounts = [
            sum(unit.get(kind, 0.0) for unit, _ in placement.units) for placement in placements
        ]
        fewest = sum(n * one.min_replicas for n, one in zip(amounts, placements, strict=True))
        most = sum(n * one.max_replicas for n, one in zip(amounts, placements, strict=True))
        parts.append(f"{fewest:g} {kind}" if fewest == most else f"{fewest:g} to {most:g} {kind}")
    return ", ".join(parts)


def _least_ms(num_bytes: int, gpu: str) -> float:
    return num_bytes / (_GB_PER_S[gpu] * 1e9) * 1e3


def _gpu_of(placement: Placement, cluster: Cluster) -> str | None:
    """Return the slowest kind of GPU that ranks may come to; None if no known kind can be seen."""
    labels = placement.units[-1][1]
    kinds = {_kind(node) for node in cluster.nodes if node.has(labels)}
    return min((kind for kind in kinds if kind), key=_GB_PER_S.__getitem__, default=None)


def _kind(node: Node) -> str | None:
    name = dict(node.labels).get(_TYPE_LABEL, "")
    return name if name in _GB_PER_S else None
