"""Training an MTP head: it learns what is drafted by later, and writes what is read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from models.demo.data.mixture import Batch, Mixture, make_batch
from models.demo.training.mtp import LOSSES, MtpLayer, mtp_acceptance, mtp_loss, save_mtp
from models.heads.mtp import read_mtp
from tests.cases.models.mtp import PREFIX, PlainMtp, write_mtp
from tests.fakes.engines import VOCAB_SIZE, tiny_checkpoint

TARGET = tiny_checkpoint(noise=0.0)
NUM_STEPS = 3
DEMO = Path(__file__).parents[4] / "models" / "demo"


def target_model() -> LlamaForCausalLM:
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    return model.eval().requires_grad_(False)


def layer_of(target: LlamaForCausalLM) -> MtpLayer:
    torch.manual_seed(3)
    return MtpLayer(target)


def random_batch(seed: int, length: int = 24) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCAB_SIZE, (2, length), generator=generator)
    return Batch(ids, torch.ones(2, length))


@pytest.mark.parametrize("kind", LOSSES)
def test_each_step_learns_by_the_state_that_a_draft_has_there(kind: str, tmp_path: Path) -> None:
    """The loss is that of a plain forward of every row by itself, step by step."""
    target = target_model()
    layer = layer_of(target)
    batch = random_batch(1, length=7)
    weights = {f"{PREFIX}{name}": value for name, value in layer.state_dict().items()}
    plain = PlainMtp(TARGET, write_mtp(tmp_path, weights))
    whole = target(batch.input_ids).logits
    steps = []
    for own in range(NUM_STEPS):
        losses = []
        for row, ids in enumerate(batch.input_ids.tolist()):
            for place in range(own, len(ids) - 1):
                logits = target.lm_head(plain.state_behind(ids[: place + 1], own))
                losses.append(loss_of(kind, logits, whole[row, place], ids[place + 1]))
        steps.append(torch.stack(losses))
    parts = [step.mean() * 0.6**own for own, step in enumerate(steps)]
    expected = torch.stack(parts).sum() / sum(0.6**own for own in range(NUM_STEPS))
    found = mtp_loss(layer, target, batch, kind, NUM_STEPS)
    torch.testing.assert_close(found, expected, rtol=3e-2, atol=1e-3)


def loss_of(kind: str, own: torch.Tensor, theirs: torch.Tensor, token: int) -> torch.Tensor:
    student, teacher = own.log_softmax(-1), theirs.log_softmax(-1)
    divergence = (teacher.exp() * (teacher - student)).sum()
    if kind == "kl":
        return 0.9 * divergence - 0.1 * student[token]
    accepted = torch.minimum(student.exp(), teacher.exp()).sum()
    if kind == "nla":
        return -accepted.log()
    share = torch.exp(-3 * accepted)
    return share * divergence + (1 - share) * (1 - accepted)


@pytest.mark.parametrize("kind", LOSSES)
def test_it_learns(kind: str) -> None:
    """Random text of a random model: more of what it says is the target's, at every step."""
    target = target_model()
    layer = layer_of(target)
    batch = random_batch(2)
    before = mtp_acceptance(layer, target, batch, NUM_STEPS)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=3e-3)
    for _ in range(30):
        loss = mtp_loss(layer, target, batch, kind, NUM_STEPS)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    after = mtp_acceptance(layer, target, batch, NUM_STEPS)
    for step in range(NUM_STEPS):
        assert after[step][1] > before[step][1] + 0.05
    assert all(not weight.requires_grad for weight in target.parameters())


def test_what_is_written_is_read(tmp_path: Path) -> None:
    target = target_model()
    layer = layer_of(target)
    save_mtp(layer, target, tmp_path, NUM_STEPS)
    parts = read_mtp(tmp_path, target)
    assert parts.num_tokens == NUM_STEPS
    for name, weight in parts.named_weights().items():
        torch.testing.assert_close(weight, layer.state_dict()[name].bfloat16().float())


def test_the_shipped_head_is_mostly_right_on_held_out_text() -> None:
    """Of generated text alone; the card has figures of the whole mixture."""
    target = LlamaForCausalLM.from_pretrained(DEMO / "target", dtype=torch.float32).eval()
    layer = MtpLayer(target)
    stored = load_file(DEMO / "mtp" / "model.safetensors")
    layer.load_state_dict({key.removeprefix(PREFIX): each for key, each in stored.items()})
    mixture = Mixture.load(None, held_out=True)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(DEMO / "target")
    batch = make_batch(mixture, tokenizer, 22, 0, 1024)
    for greedy, sampled in mtp_acceptance(layer, target, batch, NUM_STEPS):
        assert greedy > 0.65
        assert sampled > 0.6
