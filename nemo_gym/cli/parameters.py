"""The parameters of the commands whose logic lives here. Field descriptions are their help.

Commands with a library of their own (collection, profiling, data) take their parameter classes from there.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from nemo_gym import CACHE_DIR

ServerFolder = Annotated[
    str, StringConstraints(pattern=r"^(resources_servers|responses_api_agents|responses_api_models)/[A-Za-z0-9_]+/?$")
]


class HeadServerAddress(BaseModel):
    """Where the head server listens."""

    host: str
    port: int


class ConfigurationConfig(BaseModel):
    """What every command that reads a configuration understands."""

    model_config = ConfigDict(extra="allow")

    config_paths: list[str] = Field(
        default=[],
        description='Configuration files, later ones win: "+config_paths=[a.yaml,b.yaml]". Looked for in the working'
        " directory, then where the package is installed.",
    )
    error_on_almost_servers: bool = Field(
        default=True, description="Refuse blocks that look like a server but are no valid one; false only warns."
    )
    verbose: bool = Field(default=False, description="Show details of what happens.")


class RunConfig(ConfigurationConfig):
    """Parameters of ``ng_run``."""

    head_server: HeadServerAddress = Field(
        default=HeadServerAddress(host="127.0.0.1", port=11000),
        description="Where the head server listens: '+head_server={host: 127.0.0.1, port: 12000}'.",
    )
    default_host: str = Field(default="127.0.0.1", description="Host that servers without one of their own bind to.")
    use_absolute_ip: bool = Field(
        default=False, description="Bind to this machine's own address, to be reached from others."
    )
    port_range_low: int = Field(default=10001, description="Lowest port that a server without one of its own may get.")
    port_range_high: int = Field(default=20000, description="Highest such port.")
    nemo_gym_log_dir: str | None = Field(
        default=None, description="Also write the output of each server process to <dir>/<instance>.log."
    )
    skip_venv_if_present: bool = Field(
        default=False, description="Use a server's virtual environment as it is, without looking for missing packages."
    )
    uv_venv_dir: str | None = Field(
        default=None, description="Where virtual environments of servers are kept; the cache folder unless given."
    )
    dry_run: bool = Field(default=False, description="Prepare everything, start nothing.")
    policy_base_url: str | None = Field(default=None, description="Endpoint of the model; usually kept in env.yaml.")
    policy_api_key: str | None = Field(default=None, description="Key for that endpoint; usually kept in env.yaml.")
    policy_model_name: str | None = Field(default=None, description="Name of the model at that endpoint.")


class StatusConfig(BaseModel):
    """Parameters of ``ng_status``."""

    head_server: HeadServerAddress = Field(
        default=HeadServerAddress(host="127.0.0.1", port=11000), description="Where the head server listens."
    )
    json_: bool = Field(default=False, alias="json", description="Print a JSON array instead of text.")


class InitConfig(BaseModel):
    """Parameters of ``ng_init_resources_server``."""

    entrypoint: str = Field(description="The folder to create, for example resources_servers/my_thing.")


class EnvironmentsConfig(BaseModel):
    """What commands that look at virtual environments understand."""

    uv_venv_dir: str | None = Field(
        default=None, description="Where virtual environments of servers are kept; the cache folder unless given."
    )

    @property
    def environments(self) -> Path:
        """The folder that holds them."""
        return Path(self.uv_venv_dir or CACHE_DIR)


class TestAllConfig(EnvironmentsConfig):
    """Parameters of ``ng_test_all``."""

    fail_on_total_and_test_mismatch: bool = Field(
        default=False, description="Also fail if a server has no README.md and was therefore not tested."
    )
    delete_venvs_after_each_test: bool = Field(
        default=False, description="Delete a server's own virtual environment once its tests are done, to save space."
    )
    num_shards: int = Field(default=1, ge=1, description="Divide the servers into this many parts …")
    shard_index: int = Field(default=0, ge=0, description="… and test only this one, counted from 0.")


class TestConfig(TestAllConfig):
    """Parameters of ``ng_test``."""

    entrypoint: ServerFolder | None = Field(
        default=None,
        description="Folder of the server, for example resources_servers/my_thing; none means all servers.",
    )
    should_validate_data: bool = Field(
        default=False, description="Also check the example data of a resources server: five rows, metrics, rollouts."
    )


class PipListConfig(EnvironmentsConfig):
    """Parameters of ``ng_pip_list``."""

    entrypoint: ServerFolder = Field(description="Folder of the server, for example resources_servers/my_thing.")
    format: Literal["columns", "freeze", "json"] = Field(default="columns", description="Layout of the list.")
    outdated: bool = Field(default=False, description="Only packages of which there is a newer version.")


class ListBenchmarksConfig(BaseModel):
    """Parameters of ``ng_list_benchmarks``."""

    json_: bool = Field(default=False, alias="json", description="Print a JSON array instead of a table.")
    query: str | None = Field(default=None, description="Only benchmarks whose name or domain is like this.")


class VersionConfig(BaseModel):
    """Parameters of ``ng_version``."""

    json_: bool = Field(default=False, alias="json", description="Print JSON instead of text.")
