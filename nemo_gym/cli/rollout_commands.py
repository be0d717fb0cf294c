"""The commands that handle rollouts (``ng eval …``) and the data around them (``ng dataset …``)."""

from typing import Final

from nemo_gym.cli.command import (
    CONFIGURATION,
    EXAMPLE,
    EXAMPLE_CONFIG,
    EXAMPLE_CONFIGS,
    JSON,
    VERBOSE,
    Command,
    flag,
    number_flag,
    switch,
)

_COLLECT: Final = (
    "ng_collect_rollouts +agent_name=example_single_tool_call_simple_agent"
    f" +input_jsonl_fpath={EXAMPLE}/data/example.jsonl +output_jsonl_fpath=results/rollouts.jsonl"
)
_COLLECT_HOSTED: Final = (
    "ng eval run --resources-server example_single_tool_call --model-type openai_model"
    f" -a example_single_tool_call_simple_agent -i {EXAMPLE}/data/example.jsonl -o results/evaluated.jsonl"
)
_PROFILE: Final = (
    "ng_reward_profile +materialized_inputs_jsonl_fpath=results/rollouts_materialized_inputs.jsonl"
    " +rollouts_jsonl_fpath=results/rollouts.jsonl"
)
_VIEW: Final = "ng_viewer +jsonl_fpath=results/rollouts.jsonl"
_PREPARE_BENCHMARK: Final = 'ng_prepare_benchmark "+config_paths=[benchmarks/gsm8k/config.yaml]"'
_END_TO_END: Final = (
    f"ng_e2e_collect_rollouts {EXAMPLE_CONFIGS} +split=example +output_jsonl_fpath=results/examples.jsonl"
)
_COLLECTION: Final = (
    flag("--agent", "-a", sets="agent_name"),
    flag("--output", "-o", sets="output_jsonl_fpath"),
    number_flag("--limit", sets="limit"),
    number_flag("--num-repeats", sets="num_repeats"),
    number_flag("--concurrency", sets="num_samples_in_parallel"),
    flag("--prompt-config", sets="prompt_config"),
    number_flag("--temperature", sets="responses_create_params.temperature"),
    number_flag("--top-p", sets="responses_create_params.top_p"),
    number_flag("--max-output-tokens", sets="responses_create_params.max_output_tokens"),
    switch("--resume", sets="resume_from_cache"),
    switch("--disable-aggregation", sets="disable_aggregation"),
)

ROLLOUT_COMMANDS: Final = (
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
            switch("--no-serve", sets="serve", to=False),
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
            switch("--no-serve", sets="serve", to=False),
        ),
    ),
    Command(
        name="reverify",
        path="eval reverify",
        function="nemo_gym.cli.verification:reverify_rollouts",
        parameters="nemo_gym.cli.verification:ReverifyConfig",
        summary="Run the verifiers again on saved rollouts, without the model, and show which rewards changed.",
        examples=(
            (
                f'ng_reverify "+config_paths=[{EXAMPLE_CONFIG}]" +input=results/rollouts.jsonl'
                " +output=results/verified_again.jsonl"
            ),
            (
                "ng eval reverify --resources-server example_single_tool_call"
                " -i results/rollouts.jsonl -o results/again.jsonl"
            ),
        ),
        flags=(
            *CONFIGURATION,
            VERBOSE,
            flag("--input", "--rollouts", "-i", sets="input"),
            flag("--inputs", sets="inputs"),
            flag("--output", "-o", sets="output"),
            switch("--force", sets="force"),
            switch("--overwrite", sets="overwrite"),
            switch("--append", sets="append"),
            switch("--judge-failed-only", sets="judge_failed_only"),
            number_flag("--concurrency", sets="num_samples_in_parallel"),
            switch("--resume", sets="resume_from_cache"),
            switch("--no-serve", sets="serve", to=False),
        ),
    ),
    Command(
        name="compare",
        path="eval compare",
        function="nemo_gym.cli.evaluation:show_comparison",
        parameters="nemo_gym.cli.evaluation:CompareConfig",
        summary="Compare two runs over the same tasks: the difference, its confidence, and which tasks flipped.",
        examples=("ng_compare +a=results/rollouts.jsonl +b=results/all.jsonl",),
        flags=(JSON, VERBOSE),
    ),
    Command(
        name="audit",
        path="eval audit",
        function="nemo_gym.cli.evaluation:audit",
        parameters="nemo_gym.cli.evaluation:AuditConfig",
        summary="Look in saved rollouts for rewards that were not earned, and quote what makes them suspicious.",
        examples=("ng_audit '+input=results/*.jsonl'", "ng eval audit -i results/rollouts.jsonl --json"),
        flags=(JSON, VERBOSE, flag("--input", "-i", sets="input")),
    ),
    Command(
        name="profile",
        path="eval time",
        function="nemo_gym.cli.evaluation:time_profile",
        parameters="nemo_gym.cli.evaluation:TimeProfileConfig",
        summary="Show where the time of a run went, what limited it, and the one setting to change.",
        examples=("ng_profile +rollouts=results/rollouts.jsonl",),
        flags=(JSON, VERBOSE, flag("--rollouts", sets="rollouts")),
    ),
    Command(
        name="export_traces",
        path="eval traces",
        function="nemo_gym.cli.evaluation:export_traces",
        parameters="nemo_gym.cli.evaluation:ExportTracesConfig",
        summary="Send the recorded steps of a run as OpenTelemetry spans.",
        examples=("ng_export_traces +rollouts=results/rollouts.jsonl +endpoint=http://localhost:4318/v1/traces",),
        flags=(VERBOSE, flag("--rollouts", sets="rollouts"), flag("--endpoint", sets="endpoint")),
    ),
    Command(
        name="reward_profile",
        path="eval profile",
        function="nemo_gym.cli.evaluation:reward_profile",
        parameters="nemo_gym.cli.evaluation:ProfileConfig",
        summary="Profile rewards per task: how often each was solved, and how much its rewards varied.",
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
        summary="View rollouts in a browser, even while they are being collected; search, filter, compare, share.",
        examples=(
            f"{_VIEW} +export_html=results/rollouts.html",
            f"{_VIEW} +export_html=all.html '+filter=\"reward > 0\"'",
        ),
        flags=(
            VERBOSE,
            flag("--input", "-i", sets="jsonl_fpath", several=True),
            switch("--tui", sets="tui"),
        ),
    ),
    Command(
        name="prepare_benchmark",
        path="eval prepare",
        function="nemo_gym.cli.preparation:prepare_benchmark",
        parameters="nemo_gym.cli.parameters:PrepareBenchmarkConfig",
        summary="Prepare the data of the configured benchmarks.",
        examples=(_PREPARE_BENCHMARK, "ng eval prepare --benchmark gsm8k"),
        flags=(*CONFIGURATION, VERBOSE),
    ),
)

_EXPORT: Final = "ng_export '+input=results/rollouts*.jsonl'"
_PREPARE: Final = (
    f'ng_prepare_data "+config_paths=[{EXAMPLE_CONFIG}]" +output_dirpath=results/data +mode=example_validation'
)
_RENDER: Final = (
    "ng_materialize_prompts +input_jsonl_fpath=questions.jsonl +prompt_config=prompt.yaml"
    " +output_jsonl_fpath=tasks.jsonl"
)

DATASET_COMMANDS: Final = (
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
            switch("--download", sets="should_download"),
        ),
    ),
    Command(
        name="materialize_prompts",
        path="dataset render",
        function="nemo_gym.cli.dataset_files:materialize_prompts",
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
        function="nemo_gym.cli.dataset_files:export_dataset",
        parameters="nemo_gym.exporting.recipe:Recipe",
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
        function="nemo_gym.cli.dataset_files:download_dataset",
        parameters="nemo_gym.cli.dataset_files:DownloadDatasetConfig",
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
        function="nemo_gym.cli.dataset_files:upload_dataset",
        parameters="nemo_gym.cli.dataset_files:UploadDatasetConfig",
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
            switch("--create-pr", sets="create_pr"),
        ),
    ),
)
