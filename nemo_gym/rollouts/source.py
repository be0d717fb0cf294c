"""Where a plan comes from: a task file and what is to be made of it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemo_gym.config.paths import find_readable, readable_candidates
from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.rollouts.plan import PlanSpec, Row, plan_rollouts
from nemo_gym.rollouts.store.manifest import Request
from nemo_gym.rollouts.tasks import read_tasks


@dataclass(frozen=True, slots=True)
class PlanSource:
    """A task file, read anew each time."""

    path: str  # as given
    limit: int | None
    spec: PlanSpec

    def rows(self) -> Iterator[Row]:
        """The plan."""
        return plan_rollouts(read_tasks(find_input(self.path), self.limit), self.spec)

    @property
    def request(self) -> Request:
        """What makes this plan this plan."""
        spec = self.spec
        repeats = spec.repeats if isinstance(spec.repeats, int) else dict(spec.repeats)
        settings = {
            "limit": self.limit or None,
            "agent_name": spec.agent,
            "num_repeats": repeats,
            "num_repeats_add_seed": spec.seeded,
            "responses_create_params": dict(spec.overrides),
            "prompt": spec.prompt.model_dump() if spec.prompt else None,
            "skills": spec.skills_ref["hash"] if spec.skills_ref else None,
        }
        return Request(settings, find_readable(self.path), self.limit)


def find_input(path: str) -> Path:
    """The task file that a path means."""
    candidates = readable_candidates(path)
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise ConfigPathNotFoundError(
        f"the input file {path!r} does not exist (looked for {', '.join(map(str, candidates))})",
        hint="correct +input_jsonl_fpath=… (or --input …)",
    )


def resolve_overrides(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters with the ``${…}`` in them replaced; names refer to their siblings."""
    try:
        resolved = OmegaConf.to_container(OmegaConf.create(dict(params)), resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"responses_create_params can't be resolved: {error}") from None
    assert isinstance(resolved, dict)
    return {str(name): value for name, value in resolved.items()}
