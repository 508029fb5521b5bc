"""Measures the demo pair on held-out text and prints JSON.

    python -m models.demo.evaluate --corpus DIR

`--task concepts` measures the pair in `concepts/`.

Words, and combinations of phrasing and request, are those that training never saw. Acceptance is
measured at positions of the target's own text, where speculation happens. Agreement uses greedy
text, temperature 1 uses sampled text.
"""

import argparse
import ast
import json
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from models.demo.data.chat import Conversation, ask
from models.demo.data.concepts import held_out_sets, prompt_of
from models.demo.data.extraction import make_extraction
from models.demo.data.mixture import CONCEPTS, TASKS, Mixture, encode
from models.demo.data.tool_calls import make_tool_call
from models.demo.training.sampling import generate
from models.demo.training.training import Model, load_model
from models.rewards.words import Concepts

MAX_NEW_TOKENS = 320
ROWS = 32
COUPLED_TOP = (
    128  # tokens whose coupled overlap is summed exactly; the rest adds less than their own mass
)


@dataclass(frozen=True)
class Pair:
    """The loaded pair."""

    target: Model
    draft: Model
    tokenizer: PreTrainedTokenizerFast

    @classmethod
    def load(cls, folder: Path, dtype: torch.dtype = torch.bfloat16) -> "Pair":
        """Load `target/` and `draft/` under `folder`; bfloat16 is as they are served."""
        models = [load_model(folder / name, dtype) for name in ("target", "draft")]
        return cls(
            models[0].eval(),
            models[1].eval(),
            PreTrainedTokenizerFast.from_pretrained(folder / "target"),
        )

    def answer(
        self, chats: list[Conversation], model: Model | None = None, sample: bool = False
    ) -> list[list[int]]:
        """Return the token ids of a reply to each chat's prompt."""
        prompts = [self.tokenizer(chat.prompt)["input_ids"] for chat in chats]
        order = sorted(range(len(chats)), key=lambda index: len(prompts[index]))
        replies: dict[int, list[int]] = {}
        for start in tqdm(range(0, len(order), ROWS), desc="generating", leave=False):
            some = order[start : start + ROWS]
            batch = generate(
                model or self.target, [prompts[i] for i in some], MAX_NEW_TOKENS, sample
            )
            replies.update(zip(some, batch, strict=True))
        return [replies[index] for index in range(len(chats))]

    def answer_text(self, chats: list[Conversation], model: Model | None = None) -> list[str]:
        """Return the greedy reply to each chat's prompt as text."""
        return [self.text_of(ids) for ids in self.answer(chats, model)]

    def text_of(self, ids: list[int]) -> str:
        """Return a reply's text without its end token."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


def rejection_acceptance(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """Chance that rejection sampling keeps a token, sum min(p, q); inputs [n, V], result [n]."""
    return torch.minimum(target_probs, draft_probs).sum(dim=-1)


def coupled_acceptance(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """Chance that two draws with one Gumbel noise agree: sum_x 1 / sum_y max(p_y/p_x, q_y/q_x).

    Inputs [n, V], result [n]. Only the `COUPLED_TOP` tokens with the largest min(p, q) are summed.
    So the result is a lower bound, less than the others' mass below the exact value.
    """
    overlap, top = torch.minimum(target_probs, draft_probs).topk(
        min(COUPLED_TOP, target_probs.shape[-1]), dim=-1
    )
    total = torch.zeros_like(overlap)
    for column in range(top.shape[-1]):
        chosen = top[:, column : column + 1]
        target_ratio = target_probs / target_probs.gather(-1, chosen).clamp_min(1e-30)
        draft_ratio = draft_probs / draft_probs.gather(-1, chosen).clamp_min(1e-30)
        total[:, column] = 1.0 / torch.maximum(target_ratio, draft_ratio).sum(dim=-1)
    return torch.where(overlap > 0, total, 0.0).sum(dim=-1)


@torch.inference_mode()
def _reply_logits(model: Model, prompt: list[int], reply: list[int]) -> Tensor:
    logits: Tensor = model(input_ids=torch.tensor([prompt + reply]), use_cache=False).logits[0]
    return logits[len(prompt) - 1 : -1].float()


def agreement_by_kind(
    pair: Pair, mixture: Mixture, count: int, seed: int
) -> dict[str, dict[str, float]]:
    """Return greedy agreement and both acceptance rates at temperature 1, by kind and overall."""
    results: dict[str, dict[str, float]] = {}
    for kind in mixture.shares:
        rng = random.Random(f"{seed}:{kind}")
        chats: list[Conversation] = []
        while len(chats) < max(4, count // (4 if kind == "story" else 1)):
            chat = mixture.draw(rng, kind)
            if chat.turns[0][0] != "text":
                chats.append(chat)
        prompts = [pair.tokenizer(chat.prompt)["input_ids"] for chat in chats]
        torch.manual_seed(seed)
        agree, rejection, coupled = [], [], []
        for prompt, reply in zip(prompts, pair.answer(chats), strict=True):
            draft = _reply_logits(pair.draft, prompt, reply).argmax(dim=-1)
            target = _reply_logits(pair.target, prompt, reply).argmax(dim=-1)
            agree.append((draft == target).float())
        for prompt, reply in zip(prompts, pair.answer(chats, sample=True), strict=True):
            target_probs = _reply_logits(pair.target, prompt, reply).softmax(dim=-1)
            draft_probs = _reply_logits(pair.draft, prompt, reply).softmax(dim=-1)
            rejection.append(rejection_acceptance(target_probs, draft_probs))
            coupled.append(coupled_acceptance(target_probs, draft_probs))
        values = {"greedy_agreement": agree, "rejection": rejection, "coupled": coupled}
        results[kind] = {
            name: round(float(torch.cat(rows).mean()), 4) for name, rows in values.items()
        }
    results["mixture"] = {
        name: round(
            sum(share * results[kind][name] for kind, (share, _) in mixture.shares.items()), 4
        )
        for name in ("greedy_agreement", "rejection", "coupled")
    }
    return results


@torch.inference_mode()
def held_out_loss(
    pair: Pair, mixture: Mixture, count: int, seed: int
) -> dict[str, dict[str, float]]:
    """Return the mean loss per reply token, in nats, of both models by kind and overall."""
    results: dict[str, dict[str, float]] = {"target": {}, "draft": {}}
    for kind in mixture.shares:
        rng = random.Random(f"loss:{seed}:{kind}")
        rows = encode(pair.tokenizer, [mixture.draw(rng, kind) for _ in range(count)])
        for name, model in (("target", pair.target), ("draft", pair.draft)):
            total, tokens = 0.0, 0
            for ids, weights in rows:
                shown = torch.tensor([ids[:1024]])
                logits = model(input_ids=shown, use_cache=False).logits[0, :-1].float()
                losses = torch.nn.functional.cross_entropy(logits, shown[0, 1:], reduction="none")
                is_reply = torch.tensor(weights[1:1024]) == 1.0
                total += float(losses[is_reply].sum())
                tokens += int(is_reply.sum())
            results[name][kind] = round(total / tokens, 4)
    for losses_by_kind in results.values():
        losses_by_kind["mixture"] = round(
            sum(share * losses_by_kind[kind] for kind, (share, _) in mixture.shares.items()), 4
        )
    return results


def score_extraction(chats: list[Conversation], answers: list[str]) -> dict[str, float]:
    """Return the shares of answers that parse, of exact fields, and of answers exact throughout."""
    fields, right, parsed, exact = 0, 0, 0, 0
    for chat, answer in zip(chats, answers, strict=True):
        wanted = json.loads(chat.answer)
        fields += len(wanted)
        exact += answer == chat.answer
        try:
            got = json.loads(answer)
        except json.JSONDecodeError:
            continue
        parsed += 1
        if isinstance(got, dict):
            right += sum(key in got and got[key] == value for key, value in wanted.items())
    count = len(chats)
    return {
        "valid_json": parsed / count,
        "fields_exact": round(right / fields, 4),
        "lines_exact": exact / count,
    }


def _shape_of_code(code: str, keep_name: bool) -> str:
    """Return the syntax tree as text, parameters renamed by position."""
    try:
        function = ast.parse(code).body[0]
    except (SyntaxError, IndexError, ValueError):
        return "invalid"
    if not isinstance(function, ast.FunctionDef):
        return "no function"
    names = {argument.arg: f"p{index}" for index, argument in enumerate(function.args.args)}
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
        elif isinstance(node, ast.arg):
            node.arg = names[node.arg]
    if not keep_name:
        function.name = "f"
    return ast.dump(function)


def score_code(chats: list[Conversation], answers: list[str]) -> dict[str, float]:
    """Return the shares of answers that parse and that are right but for parameter names."""
    valid, right = 0, 0
    for chat, answer in zip(chats, answers, strict=True):
        is_named = any(word in chat.prompt for word in (" Call it ", " Name it ", " The name is "))
        got = _shape_of_code(answer, is_named)
        valid += got not in ("invalid", "no function")
        right += got == _shape_of_code(chat.answer, is_named)
    return {"valid_python": valid / len(chats), "correct": right / len(chats)}


def _score_stories(chats: list[Conversation], ids: list[list[int]], pair: Pair) -> dict[str, float]:
    """Return the shares of stories that end by themselves and of asked topics that occur."""
    named, found = 0, 0
    for chat, reply in zip(chats, ids, strict=True):
        text = pair.text_of(reply).lower()
        request = chat.turns[-2][1].lower().rstrip(".?")
        about = request.partition(" about ")[2] or request.partition(" with ")[2]
        topics = [
            topic.split()[-1] for topic in about.replace(" and ", ", ").split(", ") if topic.strip()
        ]
        named += len(topics)
        found += sum(topic in text for topic in topics)
    ended = sum(reply[-1] == pair.tokenizer.eos_token_id for reply in ids)
    return {"ended": ended / len(chats), "topics_found": round(found / max(1, named), 4)}


def concept_coverage(
    pair: Pair, sets: list[tuple[str, ...]], model: Model | None = None
) -> dict[str, float]:
    """Return how well greedy sentences use concept sets, as the reward `concepts` judges it.

    `hard` is the share of sentences that use all their concepts, `soft` the mean share of concepts
    used. `ended` and `words` are of the sentences themselves.
    """
    replies = pair.answer([ask(prompt_of(concepts), "") for concepts in sets], model)
    texts = [pair.text_of(ids) for ids in replies]
    scored = [
        Concepts(concepts=list(concepts)).score(text, "", is_end=True)
        for concepts, text in zip(sets, texts, strict=True)
    ]
    count = len(sets)
    return {
        "hard": sum(one.is_met for one in scored) / count,
        "soft": round(sum(one.score for one in scored) / count, 4),
        "ended": sum(ids[-1] == pair.tokenizer.eos_token_id for ids in replies) / count,
        "words": round(sum(len(text.split()) for text in texts) / count, 2),
        "distinct_texts": len(set(texts)) / count,
    }


def evaluate_concepts(pair: Pair, mixture: Mixture, count: int, seed: int) -> dict[str, object]:
    """Return every figure of the card of the pair for concept sets."""
    sets = held_out_sets(count, seed)
    return {
        "coverage": concept_coverage(pair, sets),
        "coverage_by_size": {
            size: concept_coverage(pair, some)
            for size in sorted({len(concepts) for concepts in sets})
            if (some := [concepts for concepts in sets if len(concepts) == size])
        },
        "coverage_draft_alone": concept_coverage(pair, sets, pair.draft),
        "agreement": agreement_by_kind(pair, mixture, max(8, count // 2), seed),
        "held_out_loss_nats_per_token": held_out_loss(pair, mixture, count, seed),
    }


def evaluate(pair: Pair, mixture: Mixture, count: int, seed: int) -> dict[str, object]:
    """Return every figure of the model card."""
    rng = random.Random(seed)
    orders = [make_extraction(rng, mixture.pools, mixture.held_out, "order") for _ in range(count)]
    mixed = [mixture.draw(rng, "extraction") for _ in range(count)]
    code = [mixture.draw(rng, "code") for _ in range(count)]
    short = [
        chat
        for chat in (mixture.draw(rng, "short") for _ in range(4 * count))
        if ": " in chat.turns[0][1]
    ][:count]
    dates = [mixture.draw(rng, "date") for _ in range(count)]
    stories = [
        chat
        for chat in (mixture.draw(rng, "story") for _ in range(count))
        if chat.turns[0][0] != "text"
    ]
    stories = stories[: max(1, count // 3)]
    calls = [make_tool_call(rng, mixture.pools) for _ in range(count)]
    refusals = [mixture.draw(rng, "refusal") for _ in range(count)]

    def exact(chats: list[Conversation]) -> float:
        answers = pair.answer_text(chats)
        return sum(
            chat.answer == answer for chat, answer in zip(chats, answers, strict=True)
        ) / len(chats)

    return {
        "order_extraction": score_extraction(orders, pair.answer_text(orders)),
        "order_extraction_draft_alone": score_extraction(
            orders, pair.answer_text(orders, pair.draft)
        ),
        "all_extraction": score_extraction(mixed, pair.answer_text(mixed)),
        "code": score_code(code, pair.answer_text(code)),
        "repeat_exact": exact(short),
        "dates_exact": exact(dates),
        "tool_turns_exact": exact(calls),
        "refusals_exact": exact(refusals),
        "stories": _score_stories(stories, pair.answer(stories), pair),
        "agreement": agreement_by_kind(pair, mixture, max(8, count // 2), seed),
        "held_out_loss_nats_per_token": held_out_loss(pair, mixture, count, seed),
    }


def main() -> None:
    """Evaluate a pair from the command line."""
    parser = argparse.ArgumentParser(description="Evaluate the demo pair.")
    parser.add_argument(
        "--corpus", type=Path, help="folder of stories and word lists; without it, our own lists"
    )
    parser.add_argument("--task", choices=TASKS, default="demo", help="what the pair is for")
    parser.add_argument("--pair", type=Path, help="folder of target/ and draft/, else the task's")
    parser.add_argument("--count", type=int, default=100, help="prompts per task")
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument(
        "--float32",
        action="store_true",
        help="faster on a CPU without bfloat16 instructions; served weights are bfloat16",
    )
    arguments = parser.parse_args()
    mixture = Mixture.load(arguments.corpus, held_out=True, task=arguments.task)
    is_concepts = arguments.task == CONCEPTS
    shipped = Path(__file__).parent / ("concepts" if is_concepts else "")
    dtype = torch.float32 if arguments.float32 else torch.bfloat16
    pair = Pair.load(arguments.pair or shipped, dtype)
    figures = (evaluate_concepts if is_concepts else evaluate)(
        pair, mixture, arguments.count, arguments.seed
    )
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
