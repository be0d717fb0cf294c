"""What a step on one group does to the rollouts in it, for each loss."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("peft", reason="needs the extra train")
pytest.importorskip("gguf", reason="needs the extra train")

import torch

from nemo_gym.schemas.rows import RolloutKey
from nemo_gym.training.gguf import load_model
from nemo_gym.training.learner import (
    Learner,
    Tree,
    imitation_loss,
    pack,
    policy_gradient_loss,
    predictions,
    preference_loss,
    sampled_log_probs,
)
from nemo_gym.training.sequences import Group, TokenSequence

PROMPT = [1, 84, 101, 115, 116]
ANSWERS = [[70, 71, 2], [99, 98, 97, 96, 2], [60, 61, 2], [50, 51, 52, 53]]
REWARDS = [1.0, 0.0, 1.0, 0.0]


def answer(number: int) -> TokenSequence:
    tokens = ANSWERS[number]
    mask = [0] * len(PROMPT) + [1] * len(tokens)
    key = RolloutKey(0, number)
    return TokenSequence([*PROMPT, *tokens], mask, [0.0] * len(mask), key, REWARDS[number])


GROUP = Group(0, [answer(number) for number in range(len(ANSWERS))])


@pytest.fixture
def model(tiny_model: Path) -> Any:
    return load_model(tiny_model)


@pytest.fixture
def tree(model: Any) -> Tree:
    """The group as the model itself would have sampled it."""
    blank = pack(GROUP.sequences)
    with torch.no_grad():
        return replace(blank, old_log_probs=sampled_log_probs(blank, predictions(model, blank)))


def policy_gradient(tree: Tree, logits: torch.Tensor) -> torch.Tensor:
    return policy_gradient_loss(tree, logits, GROUP.advantages(), temperature=0.8, clip=0.2)


def preference(tree: Tree, logits: torch.Tensor) -> torch.Tensor:
    return preference_loss(tree, logits, beta=0.1)


def changes(model: Any, tree: Tree, loss: Callable[[Tree, torch.Tensor], torch.Tensor], folder: Path) -> list[float]:
    """How much likelier each answer is after one step."""
    torch.manual_seed(0)
    # The first step of fresh adapters moves only one of their two matrices; the rate warms up over three steps.
    learner = Learner(model, rank=4, lr=3e-3, steps=100, checkpoint=folder / "checkpoint")
    learner.step([loss(tree, predictions(learner.model, tree))])
    with torch.no_grad():
        moved = sampled_log_probs(tree, predictions(learner.model, tree)) - tree.old_log_probs
    return [part.sum().item() for part in moved.split(tree.sizes)]


@pytest.mark.parametrize("loss", [policy_gradient, preference])
def test_a_step_makes_good_answers_likelier_than_bad_ones(
    model: Any, tree: Tree, tmp_path: Path, loss: Callable[[Tree, torch.Tensor], torch.Tensor]
) -> None:
    good, bad, other_good, other_bad = changes(model, tree, loss, tmp_path)
    assert min(good, other_good) > 0 > max(bad, other_bad)


def test_imitation_makes_every_answer_likelier(model: Any, tree: Tree, tmp_path: Path) -> None:
    assert min(changes(model, tree, imitation_loss, tmp_path)) > 0


def test_the_policy_gradient_is_that_of_the_sampling_temperature(model: Any, tree: Tree) -> None:
    logits = predictions(model, tree).detach().requires_grad_()
    loss = policy_gradient(tree, logits)
    (gradient,) = torch.autograd.grad(loss, logits)
    weights = torch.tensor(GROUP.advantages()).repeat_interleave(torch.tensor(tree.sizes))
    (expected,) = torch.autograd.grad(-(weights * sampled_log_probs(tree, logits, temperature=0.8)).sum(), logits)
    assert torch.allclose(gradient, expected, atol=1e-6)


def test_tokens_that_moved_far_enough_are_left_alone(model: Any, tree: Tree) -> None:
    moved = torch.tensor(GROUP.advantages()).sign().repeat_interleave(torch.tensor(tree.sizes))
    logits = predictions(model, tree).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(
        policy_gradient(replace(tree, old_log_probs=tree.old_log_probs - moved), logits), logits
    )
    assert not gradient.any()
    (gradient,) = torch.autograd.grad(
        policy_gradient(replace(tree, old_log_probs=tree.old_log_probs + moved), logits), logits
    )
    assert gradient.any()


def test_without_a_clip_no_token_is_left_alone(model: Any, tree: Tree) -> None:
    moved = torch.tensor(GROUP.advantages()).sign().repeat_interleave(torch.tensor(tree.sizes))
    far = replace(tree, old_log_probs=tree.old_log_probs - moved)
    logits = predictions(model, tree).detach().requires_grad_()
    loss = policy_gradient_loss(far, logits, GROUP.advantages(), temperature=0.8, clip=math.inf)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.any(dim=-1).all()
