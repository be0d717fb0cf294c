"""Losses of sampled sequences that are packed into one tree: imitation, preference and policy gradient.

Each is a sum, over the sampled tokens or over the pairs, which the caller divides by their number in the whole step.
All of them compare with the log-probabilities that the engine recorded, so that no second model is needed.
"""

from collections.abc import Sequence

import torch

from nemo_gym.training.tree import Tree, log_probs_of


def imitation_loss(tree: Tree, logits: torch.Tensor) -> torch.Tensor:
    """The negative log-likelihood of what was sampled."""
    return -log_probs_of(tree, logits).sum()


def preference_loss(tree: Tree, logits: torch.Tensor, *, beta: float) -> torch.Tensor:
    """The loss of DPO, for a tree of pairs: better, worse, better, worse. The reference is the policy that sampled."""
    moved = log_probs_of(tree, logits) - tree.old_log_probs
    gains = torch.stack([part.sum() for part in moved.split(tree.sizes)])
    return -torch.nn.functional.logsigmoid(beta * (gains[0::2] - gains[1::2])).sum()


def policy_gradient_loss(
    tree: Tree, logits: torch.Tensor, advantages: Sequence[float], *, temperature: float, clip: float
) -> torch.Tensor:
    """The clipped surrogate of PPO with one advantage for each sequence of the tree.

    The gradient is that of the distribution that was sampled from, at its temperature. With any other one, tokens would
    be pushed even where all rollouts are equally good. How far the policy has moved is known at temperature 1.
    """
    sizes = torch.tensor(tree.sizes, device=logits.device)
    weights = torch.tensor(advantages, device=logits.device).repeat_interleave(sizes)
    tempered = log_probs_of(tree, logits, temperature=temperature)
    moved = (log_probs_of(tree, logits.detach()) - tree.old_log_probs) / temperature
    ratio = (moved + tempered - tempered.detach()).exp()
    return -torch.minimum(ratio * weights, ratio.clamp(1 - clip, 1 + clip) * weights).sum()
