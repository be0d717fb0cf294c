"""Trains LoRA adapters on a model step by step, and saves a checkpoint after each step.

After a kill, the next ``Learner`` with the same checkpoint continues after the last complete step, with the weights,
optimizer state and learning rate of an uninterrupted run. A checkpoint is written beside its destination and renamed,
so it is either complete or absent. A checkpoint of a different training plan is refused.
"""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from peft import LoraConfig, get_peft_model

from nemo_gym.errors import ConfigError

WARM_UP_STEPS: Final = 3
MAX_GRADIENT: Final = 1.0


@dataclass(frozen=True, slots=True)
class StepReport:
    """The figures of one step; ``gradient`` is the norm before clipping."""

    loss: float
    gradient: float


class Learner:
    """Trains only adapters on all linear layers of a model. The learning rate warms up, then decays to 0."""

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
