"""The commands that handle data (``ng dataset …``) and list what is available (``ng list …``)."""

from typing import Final

from nemo_gym.cli.command import EXAMPLE_CONFIG, Command
from nemo_gym.cli.flags import CONFIGURATION, JSON, VERBOSE, flag

_EXPORT: Final = "ng_export '+input=results/rollouts*.jsonl'"
_PREPARE: Final = (
    f'ng_prepare_data "+config_paths=[{EXAMPLE_CONFIG}]" +output_dirpath=results/data +mode=example_validation'
)
_RENDER: Final = (
    "ng_materialize_prompts +input_jsonl_fpath=questions.jsonl +prompt_config=prompt.yaml"
    " +output_jsonl_fpath=tasks.jsonl"
)

DATA_COMMANDS: Final = (
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
        name="materialize_prompts",
        path="dataset render",
        function="nemo_gym.cli.derived_files:materialize_prompts",
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
        function="nemo_gym.cli.derived_files:export",
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
        name="download_dataset_from_hf",
        path="dataset download",
        function="nemo_gym.cli.hub_datasets:download_dataset",
        parameters="nemo_gym.cli.hub_datasets:DownloadDatasetConfig",
        summary="Download task files from the Hugging Face hub.",
        examples=(
            "ng_download_dataset_from_hf +repo_id=owner/name +split=train +output_fpath=data/train.jsonl",
            "ng dataset download --repo-id owner/name --output-dir data",
        ),
        flags=(
            VERBOSE,
            flag("--repo-id", sets="repo_id"),
            flag("--artifact", sets="artifact_fpath"),
            flag("--split", sets="split"),
            flag("--output", "-o", sets="output_fpath"),
            flag("--output-dir", sets="output_dirpath"),
            flag("--revision", sets="revision"),
        ),
    ),
    Command(
        name="upload_dataset_to_hf",
        path="dataset upload",
        function="nemo_gym.cli.hub_datasets:upload_dataset",
        parameters="nemo_gym.cli.hub_datasets:UploadDatasetConfig",
        summary="Upload a task file to the Hugging Face hub, named after its environment.",
        examples=(
            (
                "ng_upload_dataset_to_hf +input_jsonl_fpath=data/train.jsonl +hf_organization=owner"
                " +resource_config_path=resources_servers/calculator/configs/calculator.yaml"
            ),
        ),
        flags=(
            VERBOSE,
            flag("--input", "-i", sets="input_jsonl_fpath"),
            flag("--organization", sets="hf_organization"),
            flag("--split", sets="split"),
            flag("--create-pr", sets="create_pr", constant="true"),
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
        examples=("ng_search +query=math", "ng search --query math"),
        flags=(JSON, VERBOSE, flag("--query", sets="query")),
    ),
)
