"""Samples for training the draft, and its loss: to predict the target.

Half of its rows are text sampled from the final target. A draft is asked about the target's text
and not about ours (idea: DistillSpec, arXiv 2310.08461). Knows nothing about the kinds of text.
"""

import random

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from models.demo.data.mixture import PROMPT_WEIGHT, Mixture, make_batch, shape_of_step
from models.demo.training.training import Model
from models.distill.answers import written
from models.distill.batches import Batch, Sample, pack
from models.distill.losses import token_losses

SAMPLE_ROWS = 64
MAX_NEW_TOKENS = 320


@torch.inference_mode()
def sample_replies(
    target: Model,
    tokenizer: PreTrainedTokenizerFast,
    mixture: Mixture,
    num_tokens: int,
    seed: int,
) -> list[Sample]:
    """Let the target answer drawn prompts at temperature 1 until it has written `num_tokens`."""
    rng = random.Random(f"replies:{seed}")
    torch.manual_seed(seed)
    samples: list[Sample] = []
    num_written = 0
    bar = tqdm(total=num_tokens, desc="sampling", mininterval=5)
    while num_written < num_tokens:
        prompts: list[list[int]] = []
        # Long replies in batches of their own, where there are some.
        stories = "story" in mixture.shares and len(samples) % (4 * SAMPLE_ROWS) < SAMPLE_ROWS
        while len(prompts) < SAMPLE_ROWS:
            chat = mixture.draw(rng, "story" if stories else None)
            is_long = chat.turns[-1][1].count(" ") > 60
            if chat.turns[0][0] != "text" and is_long == stories:
                prompts.append(tokenizer(chat.prompt)["input_ids"])
        replies = written(target, prompts, MAX_NEW_TOKENS, temperature=1.0)
        for prompt, reply in zip(prompts, replies, strict=True):
            samples.append((prompt + reply, [PROMPT_WEIGHT] * len(prompt) + [1.0] * len(reply)))
            num_written += len(reply)
            bar.update(len(reply))
    bar.close()
    rng.shuffle(samples)
    return samples


def make_mixed_batch(
    samples: list[Sample],
    mixture: Mixture,
    tokenizer: PreTrainedTokenizerFast,
    seed: int,
    step: int,
    tokens: int,
) -> Batch:
    """Return a step's rows: every other step of sampled text, the others of the mixture."""
    if not samples or step % 2 == 0:
        return make_batch(mixture, tokenizer, seed + 1, step, tokens)
    rng = random.Random(f"mixed:{seed}:{step}")
    rows, length = shape_of_step(step, tokens)
    packed = [pack(rng, samples, length) for _ in range(rows)]
    return Batch(
        torch.tensor([ids for ids, _ in packed]), torch.tensor([weights for _, weights in packed])
    )


def distillation_loss(
    student_logits: Tensor,  # [rows, length, V]
    teacher_logits: Tensor,  # [rows, length, V]
    batch: Batch,
) -> Tensor:
    """Return the divergence and some cross entropy, weighted per token."""
    log_probs = torch.log_softmax(teacher_logits[:, :-1].float(), dim=-1).flatten(0, 1)
    columns = batch.input_ids[:, 1:].flatten()
    losses = token_losses(student_logits[:, :-1].flatten(0, 1), log_probs, columns, "kl")
    weights = batch.weights[:, 1:].flatten()
    return (losses * weights).sum() / weights.sum()
