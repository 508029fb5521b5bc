"""The hour's report in Markdown: what each part found, and what that means."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from loadtest.gpu_day.parts import PARTS

_GOOD_OF_FLOOR = 1.5  # times the floor that a pass of few rows may take
_BUSY = 0.8  # part of a pass that the device computes
_MOST_DRAW_OPERATIONS = 40  # operations of a token; more launches than that are worth fusing

Answer = Mapping[str, Any]


def report(record: Mapping[str, Any]) -> str:
    """Return the whole page; `record` is what `__main__` writes after every part."""
    lines = [f"# A GPU's first hour, {record['machine']['date']}", "", f"`{record['command']}`", ""]
    for name, part in record["parts"].items():
        lines += [f"## {name}: {PARTS[name].question}?", ""]
        if part["status"] == "done":
            lines += [*_SECTIONS[name](part["answer"])]
        else:
            lines += [f"**{part['status']}**: {part['why']}"]
        lines += ["", f"{part['elapsed_s']:.0f} s", ""]
    return "\n".join(lines)


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Iterator[str]:
    yield "| " + " | ".join(columns) + " |"
    yield "|" + " --- |" * len(columns)
    for row in rows:
        yield "| " + " | ".join(str(row.get(column, "-")) for column in columns) + " |"


def _cards(answer: Answer) -> Iterator[str]:
    if "driver" in answer:
        yield f"Driver {answer['driver']}, torch for CUDA {answer['torch_cuda']}."
        yield ""
    cards = answer["cards"]
    yield from _table(cards, list(cards[0]))
    if len(cards) > 1:
        yield ""
        num_ways = len(cards) * (len(cards) - 1)
        yield f"{len(answer['peers'])} of {num_ways} ways between them are direct."


def _engine(answer: Answer) -> Iterator[str]:
    yield from _table([{"what": k, "found": v} for k, v in answer.items()], ("what", "found"))
    yield ""
    if answer["batch_invariant"]:
        yield "The self-test found the same bits however a row was batched."
    else:
        yield (
            "The self-test found other bits for other batches: a text may depend on who else is "
            "served, with drafts and without."
        )


def _passes(answer: Answer) -> Iterator[str]:
    for products, floor_ms in answer["floors_ms"].items():
        bits = "the same" if answer["self_test"][products] else "other"
        yield (
            f"- {products} products: reading the weights once takes {floor_ms} ms at the speed of "
            f"a copy; the self-test found {bits} bits for other batches."
        )
    yield ""
    columns = ("graphs", "products", "num_rows", "pass_ms", "products_ms", "ratio", "of_floor")
    yield from _table(answer["lines"], columns)
    yield ""
    for line in answer["lines"]:
        if line["num_rows"] == 1:
            mode = f"Graphs {line['graphs']}, {line['products']} products"
            is_good = line["of_floor"] <= _GOOD_OF_FLOOR
            yield (
                f"{mode}: a single row takes {line['of_floor']} times the floor"
                + ("." if is_good else f"; above {_GOOD_OF_FLOOR} something but memory is slow.")
            )


def _launches(answer: Answer) -> Iterator[str]:
    columns = ("graphs", "pass_ms", "busy_ms", "num_launches")
    yield from _table(answer["lines"], columns)
    for line in answer["lines"]:
        share = line["busy_ms"] / line["pass_ms"]
        yield ""
        yield (
            f"Graphs {line['graphs']}: the device computes for {share:.0%} of the pass"
            + ("." if share >= _BUSY else "; the rest it waits for the host.")
        )
        yield ""
        yield from _table(line["longest"], ("name", "ms"))


def _draws(answer: Answer) -> Iterator[str]:
    yield from _table(answer["lines"], ("terms", "rows", "ms", "num_operations"))
    many = sorted(
        {n["terms"] for n in answer["lines"] if n["num_operations"] > _MOST_DRAW_OPERATIONS}
    )
    if many:
        yield ""
        yield f"More than {_MOST_DRAW_OPERATIONS} operations a draw: {', '.join(many)}."


def _tests(answer: Answer) -> Iterator[str]:
    counts = (answer[f"num_{what}"] for what in ("passed", "failed", "skipped"))
    yield "{} passed, {} failed, {} skipped.".format(*counts)
    for failure in answer["failed"]:
        yield f"- `{failure['test']}`: {failure['why']}"


def _speed(answer: Answer) -> Iterator[str]:
    lines = answer["lines"]
    yield from _table(lines, ("batch", "way", "tokens_per_s", "acceptance"))
    for batch in dict.fromkeys(line["batch"] for line in lines):
        speed = {line["way"]: line["tokens_per_s"] for line in lines if line["batch"] == batch}
        best = max(speed, key=lambda way: speed[way])
        gain = speed[best] / speed["k=0"]
        yield ""
        yield f"At {batch}: {best} is best, {gain:.2f} of plain decoding."


def _vllm(answer: Answer) -> Iterator[str]:
    lines = answer["lines"]
    yield from _table(lines, ("batch", "way", "tokens_per_s"))
    for batch in dict.fromkeys(line["batch"] for line in lines):
        speed = {line["way"]: line["tokens_per_s"] for line in lines if line["batch"] == batch}
        yield ""
        yield f"At {batch}: our loop has {speed['our loop'] / speed['vllm']:.2f} of vLLM's speed."


def _ranks(answer: Answer) -> Iterator[str]:
    count = answer["num_texts"]
    yield f"{count} texts of {answer['num_ranks']} ranks, the same with drafts and without."
    yield ""
    yield from (f"    {line}" for line in answer["ready"])


_SECTIONS: Mapping[str, Callable[[Answer], Iterator[str]]] = {
    "cards": _cards,
    "engine": _engine,
    "passes": _passes,
    "launches": _launches,
    "draws": _draws,
    "tests": _tests,
    "one-card": _speed,
    "two-cards": _speed,
    "vllm": _vllm,
    "ranks": _ranks,
}
