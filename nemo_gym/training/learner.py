"""Trains LoRA adapters on a model: the rollouts of a task as one sequence, losses, and steps with checkpoints.

The rollouts of a task share their prompt, which is most of their tokens. A tree is the prompt once, then the rollouts
as branches: the attention mask lets every branch see only the prompt and itself, and its positions continue from the
prompt, so the log-probabilities equal those of separate sequences.

The losses are sums over the sampled tokens of a tree, or over its pairs; the caller divides them by the number in the
whole step. They compare with the log-probabilities that the engine recorded, so no second model is needed.

After a kill, the next ``Learner`` with the same checkpoint continues after the last complete step, with the weights,
optimizer state and learning rate of an uninterrupted run. A checkpoint is written beside its destination and renamed,
so it is either complete or absent. A checkpoint of a different training plan is refused.
"""

import itertools
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from peft import LoraConfig, get_peft_model

from nemo_gym.errors import ConfigError
from nemo_gym.training.sequences import TokenSequence, common_start

WARM_UP_STEPS: Final = 3
MAX_GRADIENT: Final = 1.0


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


def sampled_log_probs(tree: Tree, logits: torch.Tensor, *, temperature: float = 1.0) -> torch.Tensor:
    """The log-probability of every sampled token.

    Model servers report log-probabilities at temperature 1, whatever temperature was used for sampling.
    """
    scaled = logits.float() / temperature
    chosen: torch.Tensor = scaled.gather(-1, tree.targets[:, None])[:, 0]
    return chosen - scaled.logsumexp(-1)


def imitation_loss(tree: Tree, logits: torch.Tensor) -> torch.Tensor:
    """The negative log-likelihood of what was sampled."""
    return -sampled_log_probs(tree, logits).sum()


def preference_loss(tree: Tree, logits: torch.Tensor, *, beta: float) -> torch.Tensor:
    """The loss of DPO, for a tree of pairs: better, worse, better, worse. The reference is the policy that sampled."""
    moved = sampled_log_probs(tree, logits) - tree.old_log_probs
    gains = torch.stack([part.sum() for part in moved.split(tree.sizes)])
    return -torch.nn.functional.logsigmoid(beta * (gains[0::2] - gains[1::2])).sum()


def policy_gradient_loss(
    tree: Tree, logits: torch.Tensor, advantages: Sequence[float], *, temperature: float, clip: float
) -> torch.Tensor:
    """The clipped surrogate of PPO with one advantage for each sequence of the tree; ``clip`` bounds the ratio.

    The gradient is that of the distribution that was sampled from, at its temperature. With any other one, tokens would
    be pushed even where all rollouts are equally good. How far the policy has moved is known at temperature 1.
    """
    sizes = torch.tensor(tree.sizes, device=logits.device)
    weights = torch.tensor(advantages, device=logits.device).repeat_interleave(sizes)
    tempered = sampled_log_probs(tree, logits, temperature=temperature)
    moved = (sampled_log_probs(tree, logits.detach()) - tree.old_log_probs) / temperature
    # In value this is exp(moved). The two terms that cancel carry the gradient of the tempered distribution.
    ratio = (moved + tempered - tempered.detach()).exp()
    return -torch.minimum(ratio * weights, ratio.clamp(1 - clip, 1 + clip) * weights).sum()


@dataclass(frozen=True, slots=True)
class StepReport:
    """The figures of one step; ``gradient`` is the norm before clipping."""

    loss: float
    gradient: float


class Learner:
    """Trains only adapters on all linear layers of a model. The learning rate warms up, then decays to 0.

    ``rank`` is that of the adapters, and ``steps`` is how many there will be in all. Training goes on from
    ``checkpoint`` if that file exists.
    """

    def __init__(self, model: Any, *, rank: int, lr: float, steps: int, checkpoint: Path) -> None:
        lora = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")
        with warnings.catch_warnings():
            # PEFT reads this property of the model, which newer versions of transformers have renamed.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
            self.model = get_peft_model(model, lora).train()
        self.done = 0
        self._steps = steps
        self._checkpoint = checkpoint
        self._plan = {"rank": rank, "lr": lr, "steps": steps}
        self._weights = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.AdamW(self._weights, lr=lr, weight_decay=0.0)
        self._rate = torch.optim.lr_scheduler.LambdaLR(self._optimizer, self._share)
        if checkpoint.exists():
            self._load()

    def step(self, losses: Iterable[torch.Tensor]) -> StepReport:
        """Accumulate the gradients of all losses, one at a time to save memory, and take one optimizer step."""
        total = 0.0
        for loss in losses:
            loss.backward()
            total += loss.item()
        gradient = torch.nn.utils.clip_grad_norm_(self._weights, MAX_GRADIENT).item()
        self._optimizer.step()
        self._rate.step()
        self._optimizer.zero_grad()
        self.done += 1
        self._save()
        return StepReport(total, gradient)

    def merged(self) -> Any:
        """The model with its adapters merged in; training can't continue after that."""
        return self.model.merge_and_unload()

    def _share(self, step: int) -> float:
        return min((step + 1) / WARM_UP_STEPS, max(self._steps - step, 0) / self._steps)

    def _save(self) -> None:
        state = {
            "plan": self._plan,
            "done": self.done,
            "weights": [weight.data for weight in self._weights],
            "optimizer": self._optimizer.state_dict(),
            "rate": self._rate.state_dict(),
        }
        part = self._checkpoint.with_name(f".{self._checkpoint.name}.part")
        torch.save(state, part)
        part.replace(self._checkpoint)  # one step, so a kill leaves the old checkpoint or the new one

    def _load(self) -> None:
        state = torch.load(self._checkpoint, map_location="cpu", weights_only=True)  # runs no code from the file
        if state["plan"] != self._plan:
            raise ConfigError(
                f"{self._checkpoint} belongs to another training: {state['plan']}, not {self._plan}",
                hint="delete it, or give the settings it was made with",
            )
        for weight, saved in zip(self._weights, state["weights"], strict=True):
            weight.data.copy_(saved)
        self._optimizer.load_state_dict(state["optimizer"])
        self._rate.load_state_dict(state["rate"])
        self.done = state["done"]
