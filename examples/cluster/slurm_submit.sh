#!/bin/bash
# Submits the array of shards, and the aggregation, which waits until every shard has ended successfully.
set -euo pipefail
jobs="${JOBS:-examples/cluster}"
mkdir -p logs
array=$(sbatch --parsable "$jobs/slurm_shards.sbatch")
sbatch --dependency="afterok:$array" --kill-on-invalid-dep=yes "$jobs/slurm_aggregate.sbatch"
