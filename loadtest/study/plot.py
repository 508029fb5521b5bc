"""The pictures of a study, one of each section that was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from loadtest.acceptance.theory import constant_tokens
from loadtest.study.findings import Content, accepted_at, chosen_draft, expected
from loadtest.study.record import parts_of
from loadtest.study.theory import speed_up
from loadtest.study.ways import fixed

_PANEL_INCHES = (3.4, 2.8)
_MOST_COLUMNS = 4
_DPI = 90
_PLAIN_COLOUR = "#888888"
_THEORY_KS = (2, 4, 6, 8, 10)


def draw(content: Content, folder: Path) -> list[str]:
    """Write the pictures there is something for; their file names."""
    written = []
    for name, painter in _PAINTERS.items():
        figure = painter(content)
        if figure is not None:
            file = f"{name}.png"
            figure.savefig(folder / file, dpi=_DPI, metadata={"Software": None})
            written.append(file)
    return written


def draw_theory(cost_ratio: float, file: Path) -> None:
    """Write the textbook's picture: speed-up and tokens a round over acceptance, a line a k."""
    figure, (speeds, tokens) = _figure(2)
    rates = [rate / 100 for rate in range(10, 100)]
    for k in _THEORY_KS:
        expected_tokens = [constant_tokens(rate, k) for rate in rates]
        speeds.plot(
            rates, [speed_up(each, k, cost_ratio) for each in expected_tokens], label=f"k = {k}"
        )
        tokens.plot(rates, expected_tokens, label=f"k = {k}")
    speeds.axhline(1.0, color=_PLAIN_COLOUR, linewidth=1)
    speeds.set_title(f"E / (1 + k c), c = {cost_ratio:.3g}", fontsize="medium")
    tokens.set_title("E = (1 - a^(k+1)) / (1 - a)", fontsize="medium")
    _label(speeds, "acceptance rate a", "times plain decoding")
    _label(tokens, "acceptance rate a", "tokens per round")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=_DPI, metadata={"Software": None})


def _acceptance(content: Content) -> Figure | None:
    """Acceptance rate over temperature, a panel a draft."""
    tasks = _tasks(content, "acceptance")
    if not tasks:
        return None
    figure, panels = _figure(len(content["settings"]["drafts"]))
    for panel, draft in zip(panels, content["settings"]["drafts"], strict=False):
        for task in tasks:
            measured = accepted_at(content, draft, task)
            rates = [one["acceptance"] for one in measured.values()]
            panel.errorbar(
                list(measured),
                [rate["value"] for rate in rates],
                yerr=[
                    [rate["value"] - rate["low"] for rate in rates],
                    [rate["high"] - rate["value"] for rate in rates],
                ],
                marker="o",
                capsize=3,
                label=task,
            )
        panel.set_title(f"draft {draft}", fontsize="medium")
        panel.set_ylim(0, 1)
        _label(panel, "temperature", "acceptance rate a")
    return figure


def _speedup(content: Content) -> Figure | None:
    """Speed-up over k, a panel a task: measured, and what theory says, of each draft."""
    tasks = _tasks(content, "speedup")
    if not tasks:
        return None
    figure, panels = _figure(len(tasks))
    temperature = content["settings"]["temperature"]
    for panel, task in zip(panels, tasks, strict=False):
        for (draft, of), part in parts_of(content, "speedup"):
            if of != task:
                continue
            speed = fixed(part["lines"])
            (line,) = panel.plot(list(speed), list(speed.values()), "o-", label=f"{draft}, run")
            theory = expected(content, draft, task, temperature)
            ks = [one.k for one in theory]
            style = {"color": line.get_color(), "linewidth": 1}
            panel.plot(ks, [one.speed_up for one in theory], ":", label="E / (1 + k c)", **style)
            panel.plot(ks, [one.with_growth for one in theory], "--", label="growth too", **style)
        panel.axhline(1.0, color=_PLAIN_COLOUR, linewidth=1)
        panel.set_title(task, fontsize="medium")
        _label(panel, "draft tokens per round, k", "times plain decoding")
    return figure


def _tokens(content: Content) -> Figure | None:
    """Tokens per round over k, a panel a task: measured, and both formulas; of the chosen draft."""
    tasks = _tasks(content, "speedup")
    draft, temperature = chosen_draft(content), content["settings"]["temperature"]
    if not any(expected(content, draft, task, temperature) for task in tasks):
        return None
    figure, panels = _figure(len(tasks))
    for panel, task in zip(panels, tasks, strict=False):
        part = content["parts"].get(f"speedup/{draft}/{task}")
        lines: list[dict[str, Any]] = [] if part is None else part["lines"]
        own = {
            int(line["way"][2:]): line["tokens_per_round"]
            for line in lines
            if line["way"].startswith("k=") and line["way"] != "k=0"
        }
        theory = expected(content, draft, task, temperature)
        ks = [one.k for one in theory]
        panel.plot(list(own), list(own.values()), "ko", label="measured")
        panel.plot(ks, [one.tokens_per_round for one in theory], label="(1-a^(k+1))/(1-a)")
        panel.plot(ks, [one.by_position for one in theory], "--", label="1+S_1+...+S_k")
        panel.set_ylim(bottom=1, top=panel.get_ylim()[1])  # the diagonal may leave it
        diagonal = {"color": _PLAIN_COLOUR, "linewidth": 1}
        panel.plot(ks, [1 + k for k in ks], label="k + 1: all accepted", **diagonal)
        panel.set_title(f"{task}, draft {draft}", fontsize="medium")
        _label(panel, "draft tokens per round, k", "tokens per round")
    return figure


def _by_number(section: str, x_label: str) -> Callable[[Content], Figure | None]:
    """Speed-up of each way over batch or length; of the draft that was measured."""

    def paint(content: Content) -> Figure | None:
        parts = sorted((int(words[-1]), part) for words, part in parts_of(content, section))
        if not parts:
            return None
        figure, (panel, *_) = _figure(1)
        for way in [line["way"] for line in parts[0][1]["lines"]]:
            speed = [
                next(line["speed_up"] for line in part["lines"] if line["way"] == way)
                for _, part in parts
            ]
            panel.plot(range(len(parts)), speed, "o-", label=way)
        panel.set_xticks(range(len(parts)), [str(number) for number, _ in parts])
        _label(panel, x_label, "times plain decoding")
        return figure

    return paint


def _bars(section: str) -> Callable[[Content], Figure | None]:
    """Speed of every line of a section with one part, next to the first."""

    def paint(content: Content) -> Figure | None:
        part = next((part for _, part in parts_of(content, section)), None)
        if part is None or not part["lines"]:
            return None
        lines = part["lines"]
        figure, (panel, *_) = _figure(1)
        panel.barh([line["way"] for line in lines], [line["speed_up"] for line in lines])
        for place, line in enumerate(lines):
            panel.annotate(f"{line['speed_up']:.2f}", (line["speed_up"], place), va="center")
        panel.invert_yaxis()
        panel.margins(x=0.15)
        panel.set_xlabel(f"speed, times {lines[0]['way']}")
        return figure

    return paint


_PAINTERS: Mapping[str, Callable[[Content], Figure | None]] = {
    "acceptance": _acceptance,
    "tokens": _tokens,
    "speedup": _speedup,
    "batch": _by_number("batch", "requests at a time"),
    "lengths": _by_number("lengths", "tokens of an answer"),
    "structure": _bars("structure"),
    "ablation": _bars("ablation"),
}


def _tasks(content: Content, section: str) -> list[str]:
    return list(dict.fromkeys(words[1] for words, _ in parts_of(content, section)))


def _figure(num_panels: int) -> tuple[Figure, Sequence[Any]]:
    columns = min(num_panels, _MOST_COLUMNS)
    rows = -(-num_panels // columns)
    size = (_PANEL_INCHES[0] * max(columns, 2), _PANEL_INCHES[1] * rows)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for spare in panels[num_panels:]:
        spare.set_visible(False)
    return figure, list(_shown(panels, num_panels))


def _shown(panels: Any, num_panels: int) -> Iterator[Any]:
    yield from panels[:num_panels]


def _label(panel: Any, x_label: str, y_label: str) -> None:
    panel.set_xlabel(x_label, fontsize="small")
    panel.set_ylabel(y_label, fontsize="small")
    panel.grid(alpha=0.3)
    if panel.get_legend_handles_labels()[0]:
        panel.legend(fontsize="x-small")
