"""Batched generation with the models as Hugging Face runs them. Serving has its own engine; this is
for training.
"""

import torch

from models.demo.training.training import Model


@torch.inference_mode()
def generate(
    model: Model, prompts: list[list[int]], max_new_tokens: int, sample: bool = False
) -> list[list[int]]:
    """Return the replies to a batch of prompts, end token included, padding removed."""
    length = max(len(prompt) for prompt in prompts)
    pad, end = model.config.pad_token_id, model.config.eos_token_id
    ids = torch.tensor([[pad] * (length - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    out = model.generate(  # type: ignore[misc]  # its self type leaves these models out
        input_ids=ids,
        attention_mask=mask,
        max_new_tokens=max_new_tokens,
        do_sample=sample,
        top_k=0,
        max_length=None,
    )
    replies = []
    for row in out[:, length:].tolist():
        replies.append(row[: row.index(end) + 1] if end in row else row)
    return replies
