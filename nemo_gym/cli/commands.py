"""The one table of commands.

Console scripts, the ``ng`` tree, help and the reference in ``docs/commands.md`` all derive from it.

Every command has three spellings of equal rank: ``ng_<name>``, ``nemo_gym_<name>``, and ``ng`` or ``gym`` followed by
the name or by its place in the tree (``ng env start``).
"""

from typing import Final

from nemo_gym.cli.command import (
    CONFIGURATION,
    JSON,
    PREFIXES,
    ROOTS,
    VERBOSE,
    Command,
    chooses,
    flag,
    number,
    resources_folder,
)

_CONFIG: Final = "resources_servers/example_single_tool_call/configs/example_single_tool_call.yaml"

REVERIFY: Final = Command(
    name="reverify",
    path="eval reverify",
    function="nemo_gym.cli.verification:reverify_rollouts",
    parameters="nemo_gym.cli.verification:ReverifyConfig",
    summary="Run the verifiers again on saved rollouts, without the model, and show which rewards changed.",
    examples=(
        f'ng_reverify "+config_paths=[{_CONFIG}]" +input=results/rollouts.jsonl +output=results/verified_again.jsonl',
        "ng eval reverify --resources-server example_single_tool_call -i results/rollouts.jsonl -o results/again.jsonl",
    ),
    flags=(
        *CONFIGURATION,
        VERBOSE,
        flag("--input", "-i", sets="input"),
        flag("--output", "-o", sets="output"),
        number("--concurrency", sets="num_samples_in_parallel"),
        flag("--resume", sets="resume_from_cache", constant="true"),
        flag("--no-serve", sets="serve", constant="false"),
    ),
)


ENTRY_POINT: Final = "nemo_gym.cli.main:main"
GROUPS: Final = {
    "env": "Environments: start, look at, write and test servers",
    "eval": "Rollouts: collect, aggregate, profile",
    "dataset": "Data: prepare task files",
    "list": "What there is",
    "dev": "This project itself",
    "": "Help",
}

_FOLDER: Final = chooses("--resources-server", convert=resources_folder, sets="entrypoint")
_EXAMPLE: Final = "resources_servers/example_single_tool_call"
_EXAMPLE_CONFIG: Final = f"{_EXAMPLE}/configs/example_single_tool_call.yaml"
_EXAMPLE_CONFIGS: Final = (
    f'"+config_paths=[{_EXAMPLE_CONFIG},responses_api_models/openai_model/configs/openai_model.yaml]"'
)
_COLLECT: Final = (
    "ng_collect_rollouts +agent_name=example_single_tool_call_simple_agent"
    f" +input_jsonl_fpath={_EXAMPLE}/data/example.jsonl +output_jsonl_fpath=results/rollouts.jsonl"
)
_COLLECT_HOSTED: Final = (
    "ng eval run --resources-server example_single_tool_call --model-type openai_model"
    f" -a example_single_tool_call_simple_agent -i {_EXAMPLE}/data/example.jsonl -o results/evaluated.jsonl"
)
_PROFILE: Final = (
    "ng_reward_profile +materialized_inputs_jsonl_fpath=results/rollouts_materialized_inputs.jsonl"
    " +rollouts_jsonl_fpath=results/rollouts.jsonl"
)
_VIEW: Final = "ng_viewer +jsonl_fpath=results/rollouts.jsonl"
_EXPORT: Final = "ng_export '+input=results/rollouts*.jsonl'"
_PREPARE: Final = (
    f'ng_prepare_data "+config_paths=[{_EXAMPLE_CONFIG}]" +output_dirpath=results/data +mode=example_validation'
)
_PREPARE_BENCHMARK: Final = 'ng_prepare_benchmark "+config_paths=[benchmarks/gsm8k/config.yaml]"'
_RENDER: Final = (
    "ng_materialize_prompts +input_jsonl_fpath=questions.jsonl +prompt_config=prompt.yaml"
    " +output_jsonl_fpath=tasks.jsonl"
)
_END_TO_END: Final = (
    f"ng_e2e_collect_rollouts {_EXAMPLE_CONFIGS} +split=example +output_jsonl_fpath=results/examples.jsonl"
)
_COLLECTION: Final = (
    flag("--agent", "-a", sets="agent_name"),
    flag("--output", "-o", sets="output_jsonl_fpath"),
    number("--limit", sets="limit"),
    number("--num-repeats", sets="num_repeats"),
    number("--concurrency", sets="num_samples_in_parallel"),
    flag("--prompt-config", sets="prompt_config"),
    number("--temperature", sets="responses_create_params.temperature"),
    number("--top-p", sets="responses_create_params.top_p"),
    number("--max-output-tokens", sets="responses_create_params.max_output_tokens"),
    flag("--resume", sets="resume_from_cache", constant="true"),
)

COMMANDS: Final = (
    Command(
        name="run",
        path="env start",
        function="nemo_gym.cli.hosting:run",
        parameters="nemo_gym.cli.parameters:RunConfig",
        summary="Start the servers that the configuration describes and keep them running until Ctrl-C.",
        examples=(
            f"ng_run {_EXAMPLE_CONFIGS}",
            "ng env start --resources-server example_single_tool_call --model-type openai_model",
        ),
        flags=(*CONFIGURATION, VERBOSE),
        open_ended=True,
    ),
    Command(
        name="status",
        path="env status",
        function="nemo_gym.cli.hosting:status",
        parameters="nemo_gym.cli.parameters:StatusConfig",
        summary="Show the servers that are running and whether they answer.",
        examples=("ng_status", "ng_status '+head_server={host: 127.0.0.1, port: 12000}'", "ng env status --json"),
        flags=(JSON, VERBOSE),
    ),
    Command(
        name="dump_config",
        path="env resolve",
        function="nemo_gym.cli.hosting:dump_config",
        parameters="nemo_gym.cli.parameters:ConfigurationConfig",
        summary="Print the merged and resolved configuration as YAML, with secrets masked.",
        examples=(f"ng_dump_config {_EXAMPLE_CONFIGS}",),
        flags=(*CONFIGURATION, VERBOSE),
        open_ended=True,
    ),
    Command(
        name="validate",
        path="env validate",
        function="nemo_gym.cli.hosting:validate",
        parameters="nemo_gym.cli.parameters:ConfigurationConfig",
        summary="Check a configuration without starting anything.",
        examples=(f'ng_validate "+config_paths=[{_EXAMPLE_CONFIG}]"',),
        flags=(*CONFIGURATION, VERBOSE),
        open_ended=True,
    ),
    Command(
        name="check_folder",
        path="env check",
        function="nemo_gym.cli.hosting:check_folder",
        parameters="nemo_gym.cli.parameters:CheckFolderConfig",
        summary="Look at a server folder that somebody else wrote: what will not work here, before anything runs.",
        examples=("ng_check_folder +entrypoint=resources_servers/calculator",),
        flags=(flag("--path", sets="entrypoint"),),
    ),
    Command(
        name="init_resources_server",
        path="env init",
        function="nemo_gym.cli.scaffold:init_resources_server",
        parameters="nemo_gym.cli.parameters:InitConfig",
        summary="Write the skeleton of a new resources server: code, configuration, test, README.",
        examples=("ng_init_resources_server +entrypoint=resources_servers/my_thing",),
        flags=(_FOLDER, VERBOSE),
    ),
    Command(
        name="test",
        path="env test",
        function="nemo_gym.cli.testing:test",
        parameters="nemo_gym.cli.parameters:TestConfig",
        summary="Run the tests of one server, or of all servers if none is named.",
        examples=(f"ng_test +entrypoint={_EXAMPLE}", f"ng_test +entrypoint={_EXAMPLE} +should_validate_data=true"),
        flags=(_FOLDER, VERBOSE),
    ),
    Command(
        name="test_all",
        path="env test-all",
        function="nemo_gym.cli.testing:test_all",
        parameters="nemo_gym.cli.parameters:TestAllConfig",
        summary="Run the tests of every server and check its example data.",
        examples=("ng_test_all", "ng_test_all +num_shards=4 +shard_index=0"),
        flags=(VERBOSE,),
    ),
    Command(
        name="pip_list",
        path="env packages",
        function="nemo_gym.cli.testing:pip_list",
        parameters="nemo_gym.cli.parameters:PipListConfig",
        summary="List the Python packages that a server runs with.",
        examples=(f"ng_pip_list +entrypoint={_EXAMPLE} +format=freeze",),
        flags=(_FOLDER, VERBOSE),
    ),
    Command(
        name="collect_rollouts",
        path="eval run",
        function="nemo_gym.cli.collection:collect_rollouts",
        parameters="nemo_gym.cli.collection:CollectRolloutsConfig",
        summary="Run every task of a file through an agent and save the scored rollouts.",
        examples=(f"{_COLLECT} +limit=5 +num_repeats=2", _COLLECT_HOSTED),
        flags=(
            *CONFIGURATION,
            VERBOSE,
            *_COLLECTION,
            flag("--input", "-i", sets="input_jsonl_fpath"),
            flag("--split", sets="split"),
            flag("--no-serve", sets="serve", constant="false"),
        ),
    ),
    Command(
        name="e2e_collect_rollouts",
        path="eval e2e",
        function="nemo_gym.cli.collection:e2e_collect_rollouts",
        parameters="nemo_gym.cli.collection:EndToEndConfig",
        summary="Prepare the configured datasets, host the servers, collect rollouts, compute metrics, stop.",
        examples=(_END_TO_END,),
        flags=(*CONFIGURATION, VERBOSE, *_COLLECTION, flag("--split", sets="split")),
    ),
    Command(
        name="aggregate_rollouts",
        path="eval aggregate",
        function="nemo_gym.cli.evaluation:aggregate_rollouts",
        parameters="nemo_gym.cli.evaluation:AggregateRolloutsConfig",
        summary="Merge the rollout files of several runs and compute their metrics.",
        examples=(
            "ng_aggregate_rollouts '+input_glob=results/shard_*.jsonl' +output_jsonl_fpath=results/all.jsonl",
            "ng eval aggregate -i 'results/shard_*.jsonl' -o results/all.jsonl",
        ),
        flags=(
            *CONFIGURATION,
            VERBOSE,
            flag("--input-glob", "-i", sets="input_glob"),
            flag("--output", "-o", sets="output_jsonl_fpath"),
            flag("--no-serve", sets="serve", constant="false"),
        ),
    ),
    REVERIFY,
    Command(
        name="compare",
        path="eval compare",
        function="nemo_gym.cli.evaluation:compare",
        parameters="nemo_gym.cli.evaluation:CompareConfig",
        summary="Compare two runs over the same tasks: the difference, how sure it is, and which tasks flipped.",
        examples=("ng_compare +a=results/rollouts.jsonl +b=results/all.jsonl",),
        flags=(JSON, VERBOSE),
    ),
    Command(
        name="reward_profile",
        path="eval profile",
        function="nemo_gym.cli.evaluation:reward_profile",
        parameters="nemo_gym.cli.evaluation:ProfileConfig",
        summary="Profile rewards per task: how often each was solved, how much it varied.",
        examples=(_PROFILE,),
        flags=(
            VERBOSE,
            flag("--inputs", sets="materialized_inputs_jsonl_fpath"),
            flag("--rollouts", sets="rollouts_jsonl_fpath"),
        ),
    ),
    Command(
        name="viewer",
        path="eval view",
        function="nemo_gym.cli.viewing:viewer",
        parameters="nemo_gym.cli.viewing:ViewerConfig",
        summary="Look at rollouts in a browser, also while they are collected; search, filter, compare, share.",
        examples=(
            f"{_VIEW} +export_html=results/rollouts.html",
            f"{_VIEW} +export_html=all.html '+filter=\"reward > 0\"'",
        ),
        flags=(
            VERBOSE,
            flag("--input", "-i", sets="jsonl_fpath", several=True),
            flag("--tui", sets="tui", constant="true"),
        ),
    ),
    Command(
        name="prepare_data",
        path="dataset collate",
        function="nemo_gym.cli.preparation:prepare_data",
        parameters="nemo_gym.train_data_utils:TrainDataProcessorConfig",
        summary="Collate the datasets of the configured agents into one task file per split, with their metrics.",
        examples=(_PREPARE,),
        flags=(
            *CONFIGURATION,
            VERBOSE,
            flag("--mode", sets="mode"),
            flag("--output-dir", sets="output_dirpath"),
            flag("--download", sets="should_download", constant="true"),
        ),
    ),
    Command(
        name="prepare_benchmark",
        path="eval prepare",
        function="nemo_gym.cli.preparation:prepare_benchmark",
        parameters="nemo_gym.cli.parameters:PrepareBenchmarkConfig",
        summary="Make the data of the configured benchmarks.",
        examples=(_PREPARE_BENCHMARK, "ng eval prepare --benchmark gsm8k"),
        flags=(*CONFIGURATION, VERBOSE),
    ),
    Command(
        name="materialize_prompts",
        path="dataset render",
        function="nemo_gym.cli.preparation:materialize_prompts",
        parameters="nemo_gym.prompt:MaterializePromptsConfig",
        summary="Fill a prompt template with the fields of each row and save the rows.",
        examples=(_RENDER,),
        flags=(
            VERBOSE,
            flag("--input", "-i", sets="input_jsonl_fpath"),
            flag("--output", "-o", sets="output_jsonl_fpath"),
            flag("--prompt-config", sets="prompt_config"),
        ),
    ),
    Command(
        name="export",
        path="dataset export",
        function="nemo_gym.cli.preparation:export",
        parameters="nemo_gym.export.recipe:Recipe",
        summary="Select rollouts and write them as training data: conversations, pairs, tokens; as lines or tables.",
        examples=(
            f"{_EXPORT} +format=sft +output=data/sft.jsonl '+filter=\"turns < 10\"'",
            "ng dataset export -i results/rollouts.jsonl -o data/best.jsonl --format sft +best_per_task=1",
        ),
        flags=(
            VERBOSE,
            flag("--input", "-i", sets="input"),
            flag("--output", "-o", sets="output"),
            flag("--format", sets="format"),
            flag("--filter", sets="filter"),
        ),
    ),
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
            path=f"list {what}",
            function=f"nemo_gym.cli.catalogue:list_{what}",
            parameters="nemo_gym.cli.parameters:ListConfig",
            summary=summary,
            examples=(f"ng_list_{what}", f"ng list {what} --json"),
            flags=(JSON, VERBOSE, flag("--query", sets="query"), flag("--name", sets="name")),
        )
        for what, summary in (
            ("environments", "List the environments: domain, licence, what each needs."),
            ("agents", "List the agents."),
            ("models", "List the model servers."),
        )
    ),
    Command(
        name="search",
        path="list search",
        function="nemo_gym.cli.catalogue:search",
        parameters="nemo_gym.cli.parameters:ListConfig",
        summary="Find environments, agents, model servers and benchmarks by a word.",
        examples=("ng_search +query=math", "ng search --query math"),
        flags=(JSON, VERBOSE, flag("--query", sets="query")),
    ),
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
        function="nemo_gym.cli.information:show_help",
        parameters=None,
        summary="List all commands.",
        examples=("ng_help", "ng_collect_rollouts --help"),
    ),
    Command(
        name="version",
        path="version",
        function="nemo_gym.cli.information:version",
        parameters="nemo_gym.cli.parameters:VersionConfig",
        summary="Show the versions of this program, of Python and of what it builds on.",
        examples=("ng_version", "ng_version +json=true", "ng --version --json"),
        flags=(JSON,),
    ),
)


def by_name() -> dict[str, Command]:
    """Index the table by name."""
    return {command.name: command for command in COMMANDS}


def scripts() -> dict[str, str]:
    """All console scripts and their entry point, as ``[project.scripts]`` has to list them."""
    names = [*ROOTS, *(prefix + command.name for prefix in PREFIXES for command in COMMANDS)]
    return dict.fromkeys(names, ENTRY_POINT)
