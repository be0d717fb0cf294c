"""Scores saved rollouts again in a Gym that has only what verification needs.

It hosts the resources servers that the agents in the file use, and the servers those need. The model that wrote the
rollouts is neither hosted nor called.
"""

import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, Field

from nemo_gym.api.gyms import SERVE, Classes, reach_gym, saved_rollouts
from nemo_gym.config.addresses import server_names, server_settings
from nemo_gym.config.instances import find_references, read_instances
from nemo_gym.config.interpolation import plain_data
from nemo_gym.config.keys import DUMMY_MODEL, RESOURCES_SERVERS, RESPONSES_API_AGENTS, RESPONSES_API_MODELS
from nemo_gym.errors import ConfigError
from nemo_gym.rollout_parameters import max_rollout_attempts
from nemo_gym.rollouts.concurrency import limit_for
from nemo_gym.rollouts.options import DEFAULT_TIMEOUT_S
from nemo_gym.rollouts.outage import DEFAULT_PATIENCE_S
from nemo_gym.rollouts.reverify import Reverification, SavedRollouts, ToolReplay, VerifyAttempt
from nemo_gym.rollouts.reverify import reverify_owed as run_reverification
from nemo_gym.rollouts.run import RunControl, StopSwitch
from nemo_gym.rollouts.run_metrics import aggregate_run
from nemo_gym.rollouts.store.history import AttemptPolicy
from nemo_gym.rollouts.tally import Summary
from nemo_gym.servers.middleware.rollout_scope import wants_marks
from nemo_gym.servers.server_client import GymClient

MANY: Final = 64  # verified at once, unless set otherwise


class ReverifyConfig(BaseModel):
    """How to verify again; also the parameters of ``ng_reverify``."""

    input: str = Field(description="File with the rollouts to verify again.")
    inputs: str | None = Field(
        default=None,
        description="File with the tasks of these rollouts, if not the one that the collection wrote beside them.",
    )
    judge_failed_only: bool = Field(
        default=False,
        description="Only rollouts that have no verdict because their judge failed, from the file of failures.",
    )
    output: str = Field(description="File for the newly scored rollouts; the other files of the run go beside it.")
    resources_server: str | None = Field(
        default=None, description="The server that verifies them; by default the resources server of each agent."
    )
    replay_tools: bool = Field(
        default=False, description="Repeat the recorded tool calls first, for verifiers that look at their effects."
    )
    resume_from_cache: bool = Field(default=False, description="Continue an earlier run with the same output.")
    overwrite: bool = Field(
        default=False,
        description="Start over even if the output holds an unfinished run; it moves to a numbered folder beside it.",
    )
    append: bool = Field(
        default=False, description="Add to the output; rollouts that it already holds stay as they are."
    )
    patience_s: float = Field(
        default=DEFAULT_PATIENCE_S, ge=0, description="Seconds to wait while the servers can't be reached."
    )
    retry_failed: list[str] = Field(
        default_factory=list, description="Classes of failure to try again when resuming, e.g. [verifier_error]."
    )
    num_samples_in_parallel: int | Literal["auto"] | None = Field(
        default=MANY, description="Maximum number of rollouts to verify at once; auto: adapt to the servers."
    )
    rollout_timeout_s: float | None = Field(
        default=DEFAULT_TIMEOUT_S, gt=0, description="Seconds after which a verification is abandoned; null: never."
    )
    disable_aggregation: bool = Field(default=False, description="Compute no metrics.")
    serve: bool | None = Field(default=None, description=SERVE)
    force: bool = Field(default=False, description="Verify even if the environment does not support it.")


async def _refuse_unsupported(client: GymClient, verifiers: Collection[str]) -> None:
    """Ask every verifier whether saved rollouts can be scored again. One that does not know the route is allowed to."""
    for name in sorted(verifiers):
        reply = await client.get(server_name=name, url_path="/reverify_mode")
        mode = await reply.json() if reply.ok else None
        if isinstance(mode, dict):  # as servers of release 0.5 reply
            mode = mode.get("reverify_mode")
        if mode == "unsupported":
            raise ConfigError(
                f"{name} does not support scoring saved rollouts, because the score depends on the run itself",
                hint="collect the tasks again, or pass +force=true to verify anyway",
            )


async def reverify_in_gym(
    config: DictConfig,
    parameters: ReverifyConfig,
    saved: SavedRollouts,
    *,
    stop: StopSwitch,
    classes: Classes = MappingProxyType({}),
) -> tuple[Summary, ToolReplay | None]:
    """Verify saved rollouts again in the Gym of this process, or in one that runs elsewhere."""
    agents = saved.agents()
    hosted = _is_real(config) if parameters.serve is None else parameters.serve
    if hosted:
        config = select_servers(config, needed(config, verifiers_of(config, agents, parameters.resources_server)))
    with saved_rollouts() as rows:
        async with reach_gym(config, serve=hosted, on_crash=stop.press, classes=classes) as client:
            attempt = VerifyAttempt(
                client=client,
                saved=saved,
                verifiers=verifiers_of(client.global_config_dict, agents, parameters.resources_server),
                timeout_s=parameters.rollout_timeout_s,
                tools=ToolReplay() if parameters.replay_tools else None,
                marks=wants_marks(client.global_config_dict),
            )
            if not parameters.force:
                await _refuse_unsupported(client, set(attempt.verifiers.values()))
            wanted = Reverification(
                saved=saved,
                output=Path(parameters.output),
                resume=parameters.resume_from_cache,
                append=parameters.append,
                overwrite=parameters.overwrite,
                retries=AttemptPolicy(max_rollout_attempts(), frozenset(parameters.retry_failed)),
            )
            limit = limit_for(parameters.num_samples_in_parallel, window=MANY)
            control = RunControl(
                limit=limit, stop=stop, patience_s=parameters.patience_s, stream=sys.stderr, listeners=[rows]
            )
            aggregate = None if parameters.disable_aggregation else lambda store: aggregate_run(store.files, client)
            return await run_reverification(wanted, attempt, control, aggregate), attempt.tools


def verifiers_of(config: DictConfig, agents: Collection[str], instead: str | None) -> dict[str, str]:
    """The resources server that scores the rollouts of each agent."""
    if not agents:
        raise ConfigError("the rollouts do not name an agent", hint="they must have an agent_ref: {name: …}")
    if instead is not None:
        server_settings(config, instead)  # raises an error that lists the servers if this one does not exist
        return dict.fromkeys(agents, instead)
    verifiers = {}
    for agent in agents:
        ref = server_settings(config, agent).get("resources_server")
        if not isinstance(ref, Mapping | DictConfig) or not ref.get("name"):
            raise ConfigError(
                f"the agent {agent!r} has no resources_server that could verify its rollouts",
                hint="name one: +resources_server=<server>",
            )
        verifiers[agent] = str(ref["name"])
    return verifiers


def needed(config: DictConfig, verifiers: Mapping[str, str]) -> set[str]:
    """The agents (for their metrics), their verifiers, and whatever the verifiers refer to."""
    names, open_ends = set[str](), list(verifiers.values())
    while open_ends:
        name = open_ends.pop()
        if name not in names:
            names.add(name)
            settings: Any = OmegaConf.to_container(server_settings(config, name), resolve=True)
            open_ends += [ref.name for _, ref in find_references(settings)]
    for instance in read_instances(config):
        if instance.name in names and instance.implementation == DUMMY_MODEL:
            raise ConfigError(
                f"a verifier uses the model {instance.name!r}, which no file defines",
                hint="add the file that defines it to config_paths",
            )
    return names | verifiers.keys()


def select_servers(config: DictConfig, names: Collection[str]) -> DictConfig:
    """The configuration reduced to these servers."""
    kinds = (RESOURCES_SERVERS, RESPONSES_API_AGENTS, RESPONSES_API_MODELS)
    others = {name for name in server_names(config, *kinds) if name not in names}
    # Resolved first, because the remaining servers may refer to removed ones.
    return OmegaConf.create({str(key): value for key, value in plain_data(config).items() if key not in others})


def _is_real(config: DictConfig) -> bool:
    """Whether the configuration describes any server other than the stand-in for a model."""
    return any(instance.implementation != DUMMY_MODEL for instance in read_instances(config))
