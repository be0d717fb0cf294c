# What to collect, and where to save it. The jobs in this folder read this file. Change these lines.
CONFIGS="resources_servers/example_single_tool_call/configs/example_single_tool_call.yaml"
CONFIGS="$CONFIGS,responses_api_models/openai_model/configs/openai_model.yaml"
TASKS="resources_servers/example_single_tool_call/data/example.jsonl"
AGENT="example_single_tool_call_simple_agent"
OUTPUT="$PWD/results/rollouts.jsonl" # on a file system that all machines share
SHARDS=16

# Arguments of every ng_collect_rollouts here; endpoint and key come from the environment or from env.yaml.
COMMON=(
  "+config_paths=[$CONFIGS]"
  "+input_jsonl_fpath=$TASKS"
  "+agent_name=$AGENT"
  "+output_jsonl_fpath=$OUTPUT"
  "+num_repeats=8"
  "+resume_from_cache=true" # a job that is restarted continues where it stopped
  "+policy_base_url=${POLICY_BASE_URL:?}"
  '+policy_api_key=${oc.env:POLICY_API_KEY,none}' # read by the program, because other users can see a command line
  "+policy_model_name=${POLICY_MODEL_NAME:?}"
)
