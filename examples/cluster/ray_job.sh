#!/bin/bash
# One collection as a job on a running Ray cluster. RAY_API_SERVER_ADDRESS is the address of its dashboard.
set -euo pipefail
source "${JOBS:-examples/cluster}/settings.sh"
ray job submit --address "${RAY_API_SERVER_ADDRESS:-http://127.0.0.1:8265}" -- \
  ng_collect_rollouts "${COMMON[@]}" "+executor=ray" "+num_samples_in_parallel=8192"
