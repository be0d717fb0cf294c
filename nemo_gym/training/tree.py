"""Packs several sequences with a common prefix into one: the prefix once, then the branches, isolated from each other.

The rollouts of a task share their prompt, which is most of their tokens. The attention mask lets every branch see only
the prefix and itself, and the positions of every branch continue from the prefix, so the log-probabilities equal those
of separate sequences.

The losses are sums over the sampled tokens of a tree, or over its pairs; the caller divides them by the number in the
whole step. They compare with the log-probabilities that the engine recorded, so no second model is needed.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nemo_gym.training.sequences import TokenSequence, common_start


@dataclass(frozen=True, slots=True)
class Tree:
    """The tensors of one forward pass, and where the sampled tokens are in it."""

    ids: torch.Tensor  # [1, length]
    positions: torch.Tensor  # [1, length]
    visible: torch.Tensor  # [1, 1, length, length], true where a token may attend to another
    predictors: torch.Tensor  # for each sampled token, the position of the token before it
    targets: torch.Tensor  # the sampled tokens
    old_log_probs: torch.Tensor  # under the policy that sampled them
    sizes: list[int]  # the number of sampled tokens of each sequence

    def __len__(self) -> int:
        return int(self.ids.shape[1])


def pack(sequences: Sequence[TokenSequence], *, device: torch.device | str = "cpu") -> Tree:
    """Pack the sequences into one forward pass."""
    shared = common_start(sequences)
    ids, positions = list(sequences[0].ids[:shared]), list(range(shared))
    predictors, targets, old, sizes = list[int](), list[int](), list[float](), list[int]()
    ends = [shared]
    for sequence in sequences:
        first = len(ids)
        ids += sequence.ids[shared:]
        positions += range(shared, len(sequence.ids))
        sampled = [place for place in range(shared, len(sequence.ids)) if sequence.mask[place]]
        # A token is predicted by the one before it; for the first of a branch, that is the last of the prefix.
        predictors += [shared - 1 if place == shared else first + place - shared - 1 for place in sampled]
        targets += [sequence.ids[place] for place in sampled]
        old += [sequence.log_probs[place] for place in sampled]
        sizes.append(len(sampled))
        ends.append(len(ids))
    return Tree(
        ids=torch.tensor([ids], device=device),
        positions=torch.tensor([positions], device=device),
        visible=_visible(ends).to(device),
        predictors=torch.tensor(predictors, device=device),
        targets=torch.tensor(targets, device=device),
        old_log_probs=torch.tensor(old, device=device),
        sizes=sizes,
    )


def _visible(ends: Sequence[int]) -> torch.Tensor:
    branch = torch.zeros(ends[-1], dtype=torch.long)
    for number, (start, end) in enumerate(itertools.pairwise(ends), start=1):
        branch[start:end] = number
    # Visible is what comes earlier and belongs to the prefix (branch 0) or to the same branch.
    earlier = torch.ones(ends[-1], ends[-1], dtype=torch.bool).tril()
    return (earlier & ((branch[None] == 0) | (branch[None] == branch[:, None])))[None, None]


def predictions(model: Any, tree: Tree) -> torch.Tensor:
    """The logits that predict each sampled token, sequence by sequence."""
    mask = torch.zeros(tree.visible.shape, dtype=model.dtype, device=tree.visible.device)
    logits: torch.Tensor = model(
        input_ids=tree.ids,
        position_ids=tree.positions,
        attention_mask=mask.masked_fill(~tree.visible, torch.finfo(model.dtype).min),
        logits_to_keep=tree.predictors,
        use_cache=False,
    ).logits[0]
    return logits


def log_probs_of(tree: Tree, logits: torch.Tensor, *, temperature: float = 1.0) -> torch.Tensor:
    """The log-probability of every sampled token.

    Model servers report log-probabilities at temperature 1, whatever temperature was used for sampling.
    """
    scaled = logits.float() / temperature
    chosen: torch.Tensor = scaled.gather(-1, tree.targets[:, None])[:, 0]
    return chosen - scaled.logsumexp(-1)


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
    # In value this is exp(moved). The two terms that cancel carry the gradient of the tempered distribution.
    ratio = (moved + tempered - tempered.detach()).exp()
    return -torch.minimum(ratio * weights, ratio.clamp(1 - clip, 1 + clip) * weights).sum()
