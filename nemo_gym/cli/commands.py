"""The one table of commands.

Console scripts, the ``ng`` tree, help and the reference in ``docs/commands.md`` all derive from it.

Every command can be typed in three equivalent ways: ``ng_<name>``, ``nemo_gym_<name>``, and ``ng`` or ``gym`` followed
by the name or by its place in the tree (``ng env start``).
"""

from typing import Final

from nemo_gym.cli.command import (
    CONFIGURATION,
    EXAMPLE,
    EXAMPLE_CONFIG,
    EXAMPLE_CONFIGS,
    JSON,
    PREFIXES,
    ROOTS,
    VERBOSE,
    Command,
    flag,
    folder_flag,
    number_flag,
    switch,
)
from nemo_gym.cli.rollout_commands import DATASET_COMMANDS, ROLLOUT_COMMANDS

ENTRY_POINT: Final = "nemo_gym.cli:start_program"
GROUPS: Final = {
    "env": "Environments: start, inspect, write and test servers",
    "eval": "Rollouts: collect, aggregate, profile",
    "dataset": "Data: prepare task files",
    "list": "Lists: environments, agents, models, benchmarks",
    "dev": "Development of this project",
    "": "Help",
}

_FOLDER: Final = folder_flag("--resources-server", kind="resources_servers", sets="entrypoint")

ENVIRONMENT_COMMANDS: Final = (
    Command(
        name="run",
        path="env start",
        function="nemo_gym.cli.hosting:run",
        parameters="nemo_gym.cli.parameters:RunConfig",
        summary="Start the servers that the configuration describes and keep them running until Ctrl-C.",
        examples=(
            f"ng_run {EXAMPLE_CONFIGS}",
            "ng_run letters.py --model-type openai_model",
            "ng env start --resources-server example_single_tool_call --model-type openai_model",
        ),
        flags=(*CONFIGURATION, VERBOSE),
        open_ended=True,
    ),
    Command(
        name="status",
        path="env status",
        function="nemo_gym.cli.status:status",
        parameters="nemo_gym.cli.parameters:StatusConfig",
        summary="Show the servers that are running and whether they reply, and the collections that are running.",
        examples=(
            "ng_status",
            "ng_status +output_jsonl_fpath=results/rollouts.jsonl",
            "ng_status '+head_server={host: 127.0.0.1, port: 12000}'",
            "ng env status --json",
        ),
        flags=(JSON, VERBOSE),
    ),
    Command(
        name="dump_config",
        path="env resolve",
        function="nemo_gym.cli.hosting:dump_config",
        parameters="nemo_gym.cli.parameters:ConfigurationConfig",
        summary="Print the merged and resolved configuration as YAML, with secrets masked.",
        examples=(f"ng_dump_config {EXAMPLE_CONFIGS}",),
        flags=(*CONFIGURATION, VERBOSE),
        open_ended=True,
    ),
    Command(
        name="validate",
        path="env validate",
        function="nemo_gym.cli.checking:validate",
        parameters="nemo_gym.cli.parameters:ValidateConfig",
        summary="Check a configuration without starting anything.",
        examples=(f'ng_validate "+config_paths=[{EXAMPLE_CONFIG}]"', "ng env validate calculator --json"),
        flags=(*CONFIGURATION, JSON, VERBOSE),
        open_ended=True,
    ),
    Command(
        name="prefetch",
        path="env prefetch",
        function="nemo_gym.cli.preparation:prefetch",
        parameters="nemo_gym.cli.parameters:PrefetchConfig",
        summary="Download in advance what a run needs: packages of servers, datasets, data of benchmarks.",
        examples=(f'ng_prefetch "+config_paths=[{EXAMPLE_CONFIG}]"', "ng env prefetch calculator"),
        flags=(*CONFIGURATION, VERBOSE),
        open_ended=True,
    ),
    Command(
        name="check_folder",
        path="env check",
        function="nemo_gym.cli.checking:check_folder",
        parameters="nemo_gym.cli.parameters:CheckFolderConfig",
        summary="Inspect a server folder that someone else wrote and list what will not work, without running it.",
        examples=("ng_check_folder +entrypoint=resources_servers/calculator",),
        flags=(flag("--path", sets="entrypoint"), JSON),
    ),
    Command(
        name="check_environment",
        path="env play",
        function="nemo_gym.cli.checking:check_environments",
        parameters="nemo_gym.cli.parameters:CheckEnvironmentConfig",
        summary="Run an environment with scripted players instead of a model, and report what should be fixed.",
        examples=(
            "ng_check_environment +entrypoint=resources_servers/calculator",
            "ng_check_environment letters.py",
            "ng_check_environment letters.py +attack=true",
            "ng env play --resources-server calculator --json",
        ),
        flags=(
            _FOLDER,
            switch("--attack", sets="attack"),
            flag("--config", sets="config"),
            flag("--input", "-i", sets="input_jsonl_fpath"),
            number_flag("--limit", sets="limit"),
            JSON,
            VERBOSE,
        ),
    ),
    Command(
        name="init_resources_server",
        path="env init",
        function="nemo_gym.cli.scaffold:init_resources_server",
        parameters="nemo_gym.cli.parameters:InitConfig",
        summary="Write a new resources server, environment or benchmark: code, configuration, data, tests, README.",
        examples=(
            "ng_init_resources_server +entrypoint=resources_servers/my_thing",
            "ng_init_resources_server +entrypoint=resources_servers/my_shop +template=stateful",
            "ng_init_resources_server +from=letters.py",
            "ng env init --benchmark my_benchmark",
        ),
        flags=(
            _FOLDER,
            folder_flag("--environment", kind="environments", sets="entrypoint"),
            folder_flag("--benchmark", kind="benchmarks", sets="entrypoint"),
            flag("--template", sets="template"),
            flag("--from", sets="from"),
            VERBOSE,
        ),
    ),
    Command(
        name="test",
        path="env test",
        function="nemo_gym.cli.testing:test",
        parameters="nemo_gym.cli.parameters:TestConfig",
        summary="Run the tests of one server, or of all servers if none is named.",
        examples=(f"ng_test +entrypoint={EXAMPLE}", f"ng_test +entrypoint={EXAMPLE} +should_validate_data=true"),
        flags=(_FOLDER, JSON, VERBOSE),
    ),
    Command(
        name="test_all",
        path="env test-all",
        function="nemo_gym.cli.testing:test_all",
        parameters="nemo_gym.cli.parameters:TestAllConfig",
        summary="Run the tests of every server and check its example data.",
        examples=("ng_test_all", "ng_test_all +num_shards=4 +shard_index=0"),
        flags=(JSON, VERBOSE),
    ),
    Command(
        name="pip_list",
        path="env packages",
        function="nemo_gym.cli.testing:pip_list",
        parameters="nemo_gym.cli.parameters:PipListConfig",
        summary="List the Python packages that a server runs with.",
        examples=(f"ng_pip_list +entrypoint={EXAMPLE} +format=freeze",),
        flags=(_FOLDER, VERBOSE),
    ),
)

LIST_COMMANDS: Final = (
    Command(
        name="list_benchmarks",
        path="list benchmarks",
        function="nemo_gym.cli.catalogue:list_benchmarks",
        parameters="nemo_gym.cli.parameters:ListConfig",
        summary="List the benchmarks in benchmarks/*/config.yaml.",
        examples=("ng_list_benchmarks", "ng_list_benchmarks +query=math", "ng list benchmarks --json"),
        flags=(JSON, VERBOSE, flag("--query", sets="query")),
    ),
    *(
        Command(
            name=f"list_{what}",
            path=f"list {what.replace('_', '-')}",
            function=f"nemo_gym.cli.catalogue:list_{what}",
            parameters="nemo_gym.cli.parameters:ListConfig",
            summary=summary,
            examples=(f"ng_list_{what}", f"ng list {what.replace('_', '-')} --json"),
            flags=(JSON, VERBOSE, flag("--query", sets="query"), flag("--name", sets="name")),
        )
        for what, summary in (
            ("environments", "List the environments with their domain, licence and missing packages."),
            (
                "resources_servers",
                "List the environments by the names of their folders; followed by a name, show one of them.",
            ),
            ("agents", "List the agents."),
            ("models", "List the model servers."),
        )
    ),
    Command(
        name="search",
        path="list search",
        function="nemo_gym.cli.catalogue:search",
        parameters="nemo_gym.cli.parameters:ListConfig",
        summary="Search environments, agents, model servers and benchmarks for a word.",
        examples=("ng search math", "ng_search +query=math"),
        flags=(JSON, VERBOSE, flag("--query", sets="query")),
    ),
)

OTHER_COMMANDS: Final = (
    Command(
        name="dev_test",
        path="dev test",
        function="nemo_gym.cli.testing:dev_test",
        parameters=None,
        summary="Run the tests of this project itself, with coverage if pytest-cov is installed.",
        examples=("ng_dev_test",),
    ),
    Command(
        name="help",
        path="help",
        function="nemo_gym.cli.manual:show_help",
        parameters=None,
        summary="List all commands, or explain one.",
        examples=("ng_help", "ng help collect_rollouts", "ng_collect_rollouts --help"),
    ),
    Command(
        name="version",
        path="version",
        function="nemo_gym.cli.manual:version",
        parameters="nemo_gym.cli.parameters:VersionConfig",
        summary="Show the versions of this program, of Python and of the main dependencies.",
        examples=("ng_version", "ng_version +json=true", "ng --version --json"),
        flags=(JSON,),
    ),
)

COMMANDS: Final = (*ENVIRONMENT_COMMANDS, *ROLLOUT_COMMANDS, *DATASET_COMMANDS, *LIST_COMMANDS, *OTHER_COMMANDS)


def by_name() -> dict[str, Command]:
    """The commands, indexed by name."""
    return {command.name: command for command in COMMANDS}


def scripts() -> dict[str, str]:
    """All console scripts and their entry point, as ``[project.scripts]`` must list them."""
    names = [*ROOTS, *(prefix + command.name for prefix in PREFIXES for command in COMMANDS)]
    return dict.fromkeys(names, ENTRY_POINT)
