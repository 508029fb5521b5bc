"""The report of a study: one page of Markdown next to its pictures, from what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.report.readme.result import table
from loadtest.study.findings import (
    Choice,
    Content,
    accepted_at,
    are_compared,
    batches,
    best_choices,
    chosen_draft,
    expected,
    expected_best,
    last_paying_batch,
)
from loadtest.study.plot import draw
from loadtest.study.record import parts_of
from loadtest.study.ways import fixed

FILE = "report.md"
_NOTHING = "-"


def write_page(content: Content, folder: Path) -> Path:
    """Draw what there is and write the report; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = draw(content, folder)
    path = folder / FILE
    path.write_text(render(content, pictures), encoding="utf-8")
    return path


def render(content: Content, pictures: Sequence[str]) -> str:
    """Render the page; sections that were not measured are left out."""
    settings = content["settings"]
    lines = [
        f"# Study of {settings['target']} with {', '.join(settings['drafts'])}",
        "",
        f"Prompts: {settings['prompts']}, at most {settings['num_prompts']} of a task, "
        f"{settings['tokens']} tokens of each answer; speeds at temperature "
        f"{settings['temperature']:g}, by turns, as ratios to plain decoding in the same turn.",
    ]
    for heading, body in _sections(content):
        lines += ["", f"## {heading}", "", *body]
        picture = f"{_PICTURES.get(heading, '')}.png"
        if picture in pictures:
            lines += ["", f"![{heading}]({picture})"]
    return "\n".join([*lines, "", *_made(content), ""])


_PICTURES = {
    "Acceptance": "acceptance",
    "Tokens per round against theory": "tokens",
    "Speed against k": "speedup",
    "Batch": "batch",
    "Length of an answer": "lengths",
    "Structure": "structure",
    "Ablation": "ablation",
}


def _sections(content: Content) -> Iterator[tuple[str, list[str]]]:
    found = {
        "What to set": _advice(content),
        "Drafts": _drafts(content),
        "Acceptance": _acceptance(content),
        "Tokens per round against theory": _tokens(content),
        "Speed against k": _speed(content),
        "Batch": _batch(content),
        "Length of an answer": _lengths(content),
        "Structure": _structure(content),
        "Ablation": _ablation(content),
    }
    yield from ((heading, body) for heading, body in found.items() if body)


def _advice(content: Content) -> list[str]:
    best = best_choices(content)
    if not best:
        return []
    rows = [
        [one.task, one.draft, k_and_as_good(one), f"{one.speed_up:.2f}", f"{one.adaptive:.2f}"]
        for one in best
    ]
    head = ["task", "draft", "k (as good)", "times plain decoding", "k chosen live"]
    notes = []
    if are_compared(content):
        notes = ["", f"Take the draft **{chosen_draft(content)}**: over all tasks the fastest."]
    return [table(head, rows), *notes]


def k_and_as_good(choice: Choice) -> str:
    """Show the best k, and the range of those within 3% of it."""
    low, high = choice.as_good
    return str(choice.k) if low == high else f"{choice.k} ({low}-{high})"


def _drafts(content: Content) -> list[str]:
    rows = []
    temperature = content["settings"]["temperature"]
    tasks = list(dict.fromkeys(task for (_, task), _ in parts_of(content, "acceptance")))
    for (draft,), part in parts_of(content, "costs"):
        weights = part["weights"]
        size = f"{weights['draft_mb']:.0f} MB" if "draft_mb" in weights else _NOTHING
        growth = ", ".join(f"{k}: {value:.2f}" for k, value in part["growth"].items())
        rows.append(
            [
                *(draft, size, f"{part['draft_ms']:.2f} ms", f"{part['cost_ratio']:.3f}", growth),
                *(_expected(content, draft, task, temperature) for task in tasks),
            ]
        )
    if not rows:
        return []
    part = next(part for _, part in parts_of(content, "costs"))
    target = (
        f"A target pass of one row takes {part['target_ms']:.2f} ms for "
        f"{part['weights']['target_mb']:.0f} MB of weights. The tasks' columns have the speed-up "
        "(and its k) that acceptance and these times let expect."
    )
    head = ["draft", "weights", "a step", "c", "pass of k + 1 rows / of one, by k", *tasks]
    return [target, "", table(head, rows)]


def _expected(content: Content, draft: str, task: str, temperature: float) -> str:
    best = expected_best(content, draft, task, temperature)
    return _NOTHING if best is None else f"{best[1]:.2f} ({best[0]})"


def _acceptance(content: Content) -> list[str]:
    temperatures = content["settings"]["temperatures"]
    rows = []
    for (draft, task), _ in parts_of(content, "acceptance"):
        measured = accepted_at(content, draft, task)
        cells = []
        for temperature in temperatures:
            one = measured.get(temperature)
            best = expected_best(content, draft, task, temperature)
            k = "" if best is None else f", k {best[0]}"
            cells.append(_NOTHING if one is None else f"{one['acceptance']['value']:.2f}{k}")
        rows.append([f"{task}, {draft}", *cells])
    if not rows:
        return []
    head = ["task, draft", *(f"T = {temperature:g}" for temperature in temperatures)]
    note = (
        "Each token's rate of acceptance where those before it were accepted, and the k that this "
        "and the measured passes make the fastest."
    )
    return [note, "", table(head, rows)]


def _tokens(content: Content) -> list[str]:
    draft, temperature = chosen_draft(content), content["settings"]["temperature"]
    rows = []
    for (of, task), part in parts_of(content, "speedup"):
        theory = expected(content, draft, task, temperature)
        if of != draft or not theory:
            continue
        own = {line["way"]: line["tokens_per_round"] for line in part["lines"]}
        rows.append(
            [task]
            + [
                f"{own[f'k={one.k}']:.2f} / {one.tokens_per_round:.2f} / {one.by_position:.2f}"
                for one in theory
            ]
        )
    if not rows:
        return []
    head = ["task", *(f"k = {k}" for k in content["settings"]["k"])]
    note = (
        f"Draft {draft}: measured / (1 - a^(k+1)) / (1 - a) / 1 + S_1 + ... + S_k. Short answers "
        "end before their last round is whole, so measured figures may be lower."
    )
    return [note, "", table(head, rows)]


def _speed(content: Content) -> list[str]:
    temperature = content["settings"]["temperature"]
    rows = []
    for (draft, task), part in parts_of(content, "speedup"):
        theory = {one.k: one for one in expected(content, draft, task, temperature)}
        cells = []
        for k, speed in fixed(part["lines"]).items():
            one = theory.get(k)
            cells.append(
                f"{speed:.2f}"
                + ("" if one is None else f" / {one.speed_up:.2f} / {one.with_growth:.2f}")
            )
        rows.append([f"{task}, {draft}", *cells, _cell(part["lines"], "adaptive")])
    if not rows:
        return []
    head = ["task, draft", *(f"k = {k}" for k in content["settings"]["k"]), "k chosen live"]
    note = (
        "Measured / E / (1 + k c) / the same with E by position, the time of a longer pass and the "
        "rounds that found no draft. "
        f"{same_text_note(content, 'speedup')}"
    )
    return [note, "", table(head, rows)]


def _batch(content: Content) -> list[str]:
    draft = next((words[0] for words, _ in parts_of(content, "batch")), None)
    if draft is None:
        return []
    found = batches(content, draft)
    parts = dict(parts_of(content, "batch"))
    rows = [
        [
            str(batch),
            *(f"{speed:.2f}" for speed in fixed(parts[draft, str(batch)]["lines"]).values()),
            f"{choice.adaptive:.2f}",
            f"{parts[draft, str(batch)]['costs']['cost_ratio']:.3f}",
        ]
        for batch, choice in found.items()
    ]
    ks = fixed(parts[draft, str(next(iter(found)))]["lines"])
    head = ["requests at a time", *(f"k = {k}" for k in ks), "k chosen live", "c"]
    last = last_paying_batch(content, draft)
    verdict = (
        f"With draft {draft} no fixed k pays at any batch."
        if last is None
        else f"With draft {draft} a fixed k pays up to {last} requests at a time."
    )
    return [verdict, "", table(head, rows)]


def _lengths(content: Content) -> list[str]:
    parts = list(parts_of(content, "lengths"))
    rows = [
        [words[-1], *(f"{line['speed_up']:.2f}" for line in part["lines"][1:])]
        for words, part in sorted(parts, key=lambda one: int(one[0][-1]))
    ]
    if not rows:
        return []
    head = ["tokens", *(_way(line["way"]) for line in parts[0][1]["lines"][1:])]
    note = f"Whole answers, prompts included; task {parts[0][1]['task']}, draft {parts[0][0][0]}."
    return [note, "", table(head, rows)]


def _structure(content: Content) -> list[str]:
    part = next((part for _, part in parts_of(content, "structure")), None)
    if part is None:
        return []
    rows = [
        [
            line["way"].replace("k=", "k = "),
            f"{line['speed_up']:.2f}",
            f"{line['acceptance']:.2f}",
            f"{line['tokens_per_round']:.2f}",
            str(line["num_tokens"]),
            f"{line['valid_share']:.0%}",
        ]
        for line in part["lines"]
    ]
    head = ["", "speed, times free and plain", "accepted of drafted", "tokens per round", "tokens"]
    return [table([*head, "valid JSON"], rows)] if rows else []


def _ablation(content: Content) -> list[str]:
    part = next((part for _, part in parts_of(content, "ablation")), None)
    if part is None:
        return []
    rows = [[line["way"], f"{line['speed_up']:.2f}"] for line in part["lines"]]
    note = (
        f"{part['num_requests']} requests that begin alike, {part['batch']} at a time; all on: "
        "compiled kernels, batching, prefix cache, the draft in 8 bits where it is a model on a "
        "CPU, k chosen live."
    )
    return [note, "", table(["", "speed, times all on"], rows)]


def same_text_note(content: Content, section: str) -> str:
    """Say if drafting changed any text."""
    differing = [
        f"{'/'.join(words)} {line['way']}"
        for words, part in parts_of(content, section)
        for line in part["lines"]
        if not line["is_same_text"]
    ]
    return (
        f"Texts that are not plain decoding's: {', '.join(differing)}."
        if differing
        else "Every text is plain decoding's, token by token."
    )


def _made(content: Content) -> list[str]:
    machine, settings = content["machine"], content["settings"]
    seconds = sum(part["seconds"] for part in content["parts"].values())
    return [
        f"`{content['command']}`, {machine['date']}, {machine['processor']}, "
        f"{machine['cores']} cores, {settings['threads']} threads of a pass, {settings['dtype']}, "
        f"torch {machine['torch']}; {len(content['parts'])} parts in {seconds:.0f} s.",
    ]


def _cell(lines: Sequence[Mapping[str, Any]], way: str) -> str:
    return next((f"{line['speed_up']:.2f}" for line in lines if line["way"] == way), _NOTHING)


def _way(name: str) -> str:
    return "k chosen live" if name == "adaptive" else name.replace("=", " = ")
