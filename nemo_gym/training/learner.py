"""Adapters (LoRA) on a model, trained one step after the other, and saved after each.

After a kill the next ``Learner`` with the same checkpoint goes on where the last whole step ended: weights, optimizer
and learning rate are those of an unbroken run. A checkpoint is written beside its place and renamed, so it is whole or
not there; one that belongs to another plan of training is refused.
"""

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
    """How one step went; ``gradient`` is the norm before it was clipped."""

    loss: float
    gradient: float


class Learner:
    """A model of which only adapters on all linear layers are trained. The learning rate warms up, then falls to 0."""

    def __init__(self, model: Any, *, rank: int, lr: float, steps: int, checkpoint: Path) -> None:
        lora = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")
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
        """Add up the gradients of all losses, one after the other to save memory, and go a step along them."""
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
        """The model with its adapters merged in; there is no training after that, and the checkpoint may go."""
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
        part.replace(self._checkpoint)

    def _load(self) -> None:
        state = torch.load(self._checkpoint, map_location="cpu", weights_only=True)
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
