import pytest
import torch

from models.demo.data.chat import ask
from models.demo.evaluate import (
    coupled_acceptance,
    rejection_acceptance,
    score_code,
    score_extraction,
)


def test_equal_distributions_are_always_accepted() -> None:
    probs = torch.randn(5, 40, generator=torch.Generator().manual_seed(1)).softmax(-1)
    assert torch.allclose(rejection_acceptance(probs, probs), torch.ones(5), atol=1e-5)
    assert torch.allclose(coupled_acceptance(probs, probs), torch.ones(5), atol=1e-5)


def test_coupled_acceptance_matches_drawn_noise() -> None:
    generator = torch.Generator().manual_seed(2)
    target, draft = torch.randn(2, 1, 12, generator=generator).softmax(-1)
    noise = -torch.log(-torch.log(torch.rand(200_000, 12, generator=generator)))
    same = (target.log() + noise).argmax(-1) == (draft.log() + noise).argmax(-1)
    exact = float(coupled_acceptance(target, draft)[0])
    assert exact == pytest.approx(float(same.float().mean()), abs=5e-3)
    assert exact <= float(rejection_acceptance(target, draft)[0])


def test_disjoint_distributions_are_never_accepted() -> None:
    target, draft = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    assert float(coupled_acceptance(target, draft)[0]) == 0.0


def test_extraction_scores_fields() -> None:
    chats = [ask("x", '{"a": "b", "n": 2}')] * 3
    score = score_extraction(chats, ['{"a": "b", "n": 2}', '{"a": "c", "n": 2}', "{"])
    assert score == {
        "valid_json": pytest.approx(2 / 3),
        "fields_exact": 0.5,
        "lines_exact": pytest.approx(1 / 3),
    }


def test_code_score_ignores_parameter_names() -> None:
    chats = [ask("Write it.", "def add(a, b):\n    return a + b")] * 3
    answers = ["def plus(x, y):\n    return x + y", "def add(a, b):\n    return a - b", "def ("]
    assert score_code(chats, answers) == {
        "valid_python": pytest.approx(2 / 3),
        "correct": pytest.approx(1 / 3),
    }
