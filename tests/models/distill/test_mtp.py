"""Training an MTP head: it learns what is drafted by later, and writes what is read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from models.demo.data.mixture import Mixture, make_batch
from models.distill.batches import Batch
from models.distill.losses import LOSSES
from models.distill.mtp import MtpStudent
from models.distill.student import judge, loss_of
from models.distill.teacher import Teacher
from models.heads.mtp import read_mtp
from tests.cases.models.mtp import PREFIX, PlainMtp, write_mtp
from tests.fakes.engines import VOCAB_SIZE, tiny_checkpoint

TARGET = tiny_checkpoint(noise=0.0)
NUM_STEPS = 3
DEMO = Path(__file__).parents[3] / "models" / "demo"


def target_model() -> LlamaForCausalLM:
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    return model.eval().requires_grad_(False)


def student_of(target: LlamaForCausalLM, draft_ids: torch.Tensor | None = None) -> MtpStudent:
    torch.manual_seed(3)
    return MtpStudent(Teacher(target, draft_ids), NUM_STEPS)


def random_batch(seed: int, length: int = 24) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCAB_SIZE, (2, length), generator=generator)
    return Batch(ids, torch.ones(2, length))


DRAFTED = torch.arange(0, VOCAB_SIZE, 3)


@pytest.mark.parametrize("draft_ids", [None, DRAFTED], ids=["all", "some"])
@pytest.mark.parametrize("kind", LOSSES)
def test_each_step_learns_by_the_state_that_a_draft_has_there(
    kind: str, draft_ids: torch.Tensor | None, tmp_path: Path
) -> None:
    """The loss is that of a plain forward of every row by itself, step by step."""
    target = target_model()
    student = student_of(target, draft_ids)
    batch = random_batch(1, length=7)
    batch.weights[:, 3] = 0.0  # nothing is learnt of that token
    batch.weights[:, 5] = 0.5
    weights = {f"{PREFIX}{name}": value for name, value in student.module.state_dict().items()}
    plain = PlainMtp(TARGET, write_mtp(tmp_path, weights))
    whole = target(batch.input_ids).logits
    parts = []
    for own in range(NUM_STEPS):
        losses, shares = [], []
        for row, ids in enumerate(batch.input_ids.tolist()):
            for place in range(own, len(ids) - 1):
                logits = target.lm_head(plain.state_behind(ids[: place + 1], own))
                loss = plain_loss(kind, logits, whole[row, place], ids[place + 1], draft_ids)
                shares.append(batch.weights[row, place + 1])
                losses.append(loss * shares[-1])
        parts.append(0.6**own * torch.stack(losses).sum() / torch.stack(shares).sum())
    expected = torch.stack(parts).sum() / sum(0.6**own for own in range(NUM_STEPS))
    found = loss_of(student, Teacher(target, draft_ids).look(batch), kind)
    torch.testing.assert_close(found, expected, rtol=3e-2, atol=1e-3)


def plain_loss(
    kind: str,
    own: torch.Tensor,
    theirs: torch.Tensor,
    token: int,
    draft_ids: torch.Tensor | None,
) -> torch.Tensor:
    drafted = torch.arange(VOCAB_SIZE) if draft_ids is None else draft_ids
    student, teacher = own[drafted].log_softmax(-1), theirs.log_softmax(-1)[drafted]
    divergence = (teacher.exp() * (teacher - student)).sum()
    if kind == "kl":
        is_drafted = token in drafted.tolist()
        surprise = -student[drafted.tolist().index(token)] if is_drafted else 0.0
        return 0.9 * divergence + 0.1 * surprise
    accepted = torch.minimum(student.exp(), teacher.exp()).sum()
    if kind == "nla":
        return -accepted.log()
    share = torch.exp(-3 * accepted)
    return share * divergence + (1 - share) * (1 - accepted)


@pytest.mark.parametrize("kind", LOSSES)
def test_it_learns(kind: str) -> None:
    """Random text of a random model: more of what it says is the target's, at every step."""
    target = target_model()
    student = student_of(target)
    lesson = Teacher(target).look(random_batch(2))
    before = judge(student, lesson)
    optimizer = torch.optim.AdamW(student.module.parameters(), lr=3e-3)
    for _ in range(30):
        loss_of(student, lesson, kind).backward()
        optimizer.step()
        optimizer.zero_grad()
    after = judge(student, lesson)
    for step in range(NUM_STEPS):
        assert after[step].coupled > before[step].coupled + 0.05
        assert after[step].rejection > before[step].rejection + 0.05
    assert all(not weight.requires_grad for weight in target.parameters())


@pytest.mark.parametrize("draft_ids", [None, DRAFTED], ids=["all", "some"])
def test_what_is_written_is_read(draft_ids: torch.Tensor | None, tmp_path: Path) -> None:
    target = target_model()
    student = student_of(target, draft_ids)
    student.save(tmp_path)
    parts = read_mtp(tmp_path, target)
    assert parts.num_tokens == NUM_STEPS
    for name, weight in parts.named_weights().items():
        torch.testing.assert_close(weight, student.module.state_dict()[name].bfloat16().float())
    if draft_ids is None:
        assert parts.draft_ids is None
    else:
        assert torch.equal(torch.as_tensor(parts.draft_ids), draft_ids)


def test_the_shipped_head_is_mostly_right_on_held_out_text() -> None:
    """Of generated text alone; the card has figures of the whole mixture."""
    target = LlamaForCausalLM.from_pretrained(DEMO / "target", dtype=torch.float32).eval()
    student = student_of(target)
    stored = load_file(DEMO / "mtp" / "model.safetensors")
    weights = {key.removeprefix(PREFIX): each for key, each in stored.items()}
    student.module.load_state_dict(weights)
    mixture = Mixture.load(None, held_out=True)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(DEMO / "target")
    batch = make_batch(mixture, tokenizer, 22, 0, 1024)
    for step in judge(student, Teacher(target).look(batch)):
        assert step.greedy > 0.65
        assert step.coupled > 0.6
        assert step.rejection > step.coupled
