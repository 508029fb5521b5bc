"""Trains a drafter for a target from the target's own answers.

    python -m models.distill.prompts --count 1000 --output build/prompts.jsonl
    python -m models.distill --kind mtp --target models/demo/target --prompts build/prompts.jsonl \\
        --answers build/answers.jsonl --out build/mtp

`--kind` is `mtp` (an MTP head), `medusa` (Medusa heads) or `draft` (a small draft model). The
target answers prompts that have no answer yet. Answers kept from real requests (`router.capture` of
a config) need no prompts. A run that was stopped goes on with `--resume`. The resulting folder is
served by `target.heads` or `draft.model_path`. Its `acceptance.json` has the acceptance of its
tokens on answers that it never saw.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from models.arguments import positive
from models.checkpoint.packed import refuse_groups
from models.distill.answers import Answer, Sampling, read_answers, read_prompts, write_answers
from models.distill.batches import Sample, batch_of_step, packed_rows, sample_of
from models.distill.draft import DraftSizes, DraftStudent
from models.distill.fit import Saves, Schedule, fit, keep_freed_memory
from models.distill.losses import LOSSES
from models.distill.medusa import MedusaStudent
from models.distill.mtp import MtpStudent
from models.distill.student import Student, judge, loss_of
from models.distill.teacher import Teacher
from models.distill.vocabulary import frequent_ids
from models.fetch.known import known_model, source_of

_log = logging.getLogger(__name__)

KINDS = ("mtp", "medusa", "draft")
_HELD_OUT_PARTS = 20  # one answer of so many is kept for the end
_JUDGED_ROWS = 16


class _Data(NamedTuple):
    """Answers to learn from, and others to be judged by."""

    learnt: list[Answer]
    held_out: list[Answer]


def main() -> None:
    """Run it from the command line."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = _parser()
    arguments = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(arguments.threads)
    known = known_model(arguments.target)
    arguments.target = arguments.target if known is None else str(known.folder)
    try:
        _refuse_unfit(arguments)
        refuse_groups(arguments.target)
        tokenizer = AutoTokenizer.from_pretrained(arguments.target)
        data = _data(arguments, tokenizer)
        rows, judged_rows = (_rows(arguments, part) for part in data)
        model = AutoModelForCausalLM.from_pretrained(arguments.target, dtype=_dtype())
        drafted = None
        if arguments.draft_vocab_size:
            drafted = frequent_ids(data.learnt, arguments.draft_vocab_size)
        teacher = Teacher(model.eval().requires_grad_(False), drafted, arguments.cache_mib)
        student = _student(arguments, teacher, tokenizer)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    count = max(1, arguments.step_tokens // arguments.row_tokens)
    fit(
        student.module,
        Schedule(arguments.steps, peak_lr=arguments.lr, num_warmup_steps=arguments.steps // 20 + 1),
        make_batch=lambda step: batch_of_step(rows, count, arguments.seed, step),
        loss_of=lambda batch: loss_of(student, teacher.look(batch), arguments.loss),
        saves=Saves(
            path=arguments.work / f"{arguments.kind}.pt",
            resume=arguments.resume,
            on_save=lambda: student.save(arguments.out),
        ),
    )
    judged = _judged(student, teacher, judged_rows)
    report = _report(arguments, data, judged)
    (arguments.out / "acceptance.json").write_text(json.dumps(report, indent=1) + "\n")
    _log.info("%s", json.dumps(report["acceptance"]))


def _refuse_unfit(arguments: argparse.Namespace) -> None:
    """Refuse options that do not go together, and make the folders that are written.

    Raises:
        ValueError: there are some.
        OSError: a folder cannot be made.
    """
    if not Path(arguments.target).is_dir():
        raise ValueError(f"--target: no folder {arguments.target!r}; models.fetch fetches one")
    if arguments.kind == "draft" and arguments.draft_vocab_size:
        raise ValueError("--draft-vocab-size is of heads; a draft model speaks of all tokens")
    if arguments.row_tokens < _late(arguments) + 2:
        least = _late(arguments) + 2
        raise ValueError(f"--row-tokens must be at least {least}, got {arguments.row_tokens}")
    if arguments.prompts is not None and arguments.answers[0].is_dir():
        raise ValueError(f"--answers: {arguments.answers[0]} is a folder; new answers need a file")
    for folder in (arguments.out, arguments.work):
        folder.mkdir(parents=True, exist_ok=True)


def _late(arguments: argparse.Namespace) -> int:
    """Return the places at the start of a row that the last guess of a draft is not made for."""
    return 0 if arguments.kind == "draft" else int(arguments.depth)


def _data(arguments: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> _Data:
    """Read all answers of the files, those to `--prompts` among them.

    Raises:
        ValueError: there are too few to hold any out.
    """
    if arguments.prompts is not None:
        _answer(arguments, tokenizer)
    answers = [each for path in arguments.answers for each in read_answers(path, tokenizer)]
    parts: tuple[list[Answer], list[Answer]] = ([], [])
    for answer in answers:
        digest = hashlib.sha256(json.dumps(answer.prompt_ids).encode()).digest()
        parts[digest[0] % _HELD_OUT_PARTS == 0].append(answer)
    if not all(parts):
        raise ValueError(f"--answers must have some hundreds of answers, got {len(answers)}")
    return _Data(*parts)


def _answer(arguments: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> None:
    """Have the target answer what has no answer yet, in the type it is served in."""
    prompts = read_prompts(arguments.prompts, tokenizer)
    target = AutoModelForCausalLM.from_pretrained(arguments.target, dtype=torch.bfloat16).eval()
    sampling = Sampling(max_new_tokens=arguments.max_new_tokens, seed=arguments.seed)
    output = arguments.answers[0]
    answered = {tuple(answer.prompt_ids) for answer in read_answers(output, tokenizer)}
    write_answers(target, prompts, answered, output, sampling)


def _student(
    arguments: argparse.Namespace, teacher: Teacher, tokenizer: PreTrainedTokenizerBase
) -> Student:
    if arguments.kind == "mtp":
        return MtpStudent(teacher, arguments.depth)
    if arguments.kind == "medusa":
        return MedusaStudent(teacher, arguments.depth)
    sizes = DraftSizes(
        hidden_size=arguments.hidden_size,
        num_hidden_layers=arguments.num_layers,
        intermediate_size=8 * arguments.hidden_size // 3 // 16 * 16,
    )
    return DraftStudent(teacher, tokenizer, sizes, arguments.seed)


def _rows(arguments: argparse.Namespace, answers: list[Answer]) -> list[Sample]:
    """Rows of the answers' tokens; those in which a guess has nothing to learn are left out.

    Raises:
        ValueError: they do not fill one.
    """
    samples = [sample_of(answer) for answer in answers]
    packed = packed_rows(samples, arguments.row_tokens, arguments.seed)
    if rows := [row for row in packed if any(row[1][_late(arguments) + 1 :])]:
        return rows
    total = sum(len(ids) for ids, _ in samples)
    raise ValueError(
        f"--row-tokens must be less for these answers of {total} tokens, got "
        f"{arguments.row_tokens}: no row has something to learn"
    )


def _dtype() -> torch.dtype:
    """Return the type in which the target computes fastest."""
    return torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32


def _judged(student: Student, teacher: Teacher, rows: list[Sample]) -> list[dict[str, float]]:
    """Mean acceptance of each step over some rows that it never saw."""
    judged_rows = rows[:_JUDGED_ROWS]
    rounds = [
        judge(student, teacher.look(batch_of_step(judged_rows, 1, 0, number)))
        for number in range(len(judged_rows))
    ]
    return [
        {
            name: round(sum(getattr(each, name) for each in step) / len(step), 3)
            for name in step[0]._fields
        }
        for step in zip(*rounds, strict=True)
    ]


def _report(
    arguments: argparse.Namespace, data: _Data, judged: list[dict[str, float]]
) -> dict[str, object]:
    """Return the report that is stored beside the weights."""
    said = ("kind", "loss", "steps", "step_tokens", "row_tokens", "lr", "depth", "draft_vocab_size")
    return {
        **{name: getattr(arguments, name) for name in said},
        "target": Path(arguments.target).name,
        "target_source": source_of(Path(arguments.target)),
        "answers": len(data.learnt),
        "answer_tokens": sum(len(answer.answer_ids) for answer in data.learnt),
        "held_out_answers": len(data.held_out),
        "acceptance": judged,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Train a drafter for a target.")
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument(
        "--target", required=True, help="checkpoint folder, or the name of a fetched model"
    )
    parser.add_argument("--prompts", type=Path, help="lines with messages or prompt")
    parser.add_argument(
        "--answers",
        type=Path,
        nargs="+",
        required=True,
        help="files or folders; new ones go to the first",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--work", type=Path, default=Path("build/distill"), help="to resume from")
    parser.add_argument("--loss", choices=LOSSES, default="lk_hybrid")
    parser.add_argument(
        "--depth", type=positive, default=4, help="tokens of the longest draft of heads"
    )
    parser.add_argument(
        "--draft-vocab-size", type=int, default=0, help="tokens that heads draft; 0: all"
    )
    parser.add_argument("--hidden-size", type=positive, default=192, help="of a draft model")
    parser.add_argument("--num-layers", type=positive, default=4, help="of a draft model")
    parser.add_argument("--steps", type=positive, default=1000)
    parser.add_argument("--step-tokens", type=positive, default=2048)
    parser.add_argument("--row-tokens", type=positive, default=512)
    parser.add_argument(
        "--cache-mib", type=int, default=2048, help="memory for states of the target"
    )
    parser.add_argument("--lr", type=float, default=1e-3, help="peak rate")
    parser.add_argument("--max-new-tokens", type=positive, default=256, help="of an answer")
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true")
    return parser


if __name__ == "__main__":
    main()
