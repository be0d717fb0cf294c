"""The jobs in examples/cluster: shells read them, schedulers would take them, and what they run is a valid command."""

import importlib.util
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from nemo_gym.cli.collection import CollectRolloutsConfig
from nemo_gym.cli.command import Arguments
from nemo_gym.cli.evaluation import AggregateRolloutsConfig
from nemo_gym.cli.parameters import build, read_configuration
from nemo_gym.global_config import reset_global_config

JOBS = Path(__file__).parents[2] / "examples" / "cluster"
SCRIPTS = sorted([*JOBS.glob("*.sh"), *JOBS.glob("*.sbatch")])
STUB = f"""#!{sys.executable}
import json, os, sys
name = os.path.basename(sys.argv[0])
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps([name, *sys.argv[1:]]) + "\\n")
words = sys.argv[1:]
if name == "sbatch":
    print("4711")
elif name == "scontrol":
    print("one\\ntwo\\nthree")
elif name == "srun" and "hostname" in words:
    print("10.0.0.1 fe80::1")
elif name == "srun" and "ng_collect_rollouts" in words:
    os.execvp("ng_collect_rollouts", words[words.index("ng_collect_rollouts"):])
"""


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_shell_can_read_it(path: Path) -> None:
    subprocess.run(["bash", "-n", path], check=True)


@pytest.fixture
def carried_out(tmp_path: Path) -> Any:
    """Carries a script out with stand-ins for the programs of the cluster; returns what was called with what."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("sbatch", "srun", "scontrol", "ray", "ng_collect_rollouts", "ng_aggregate_rollouts"):
        (programs / name).write_text(STUB)
        (programs / name).chmod(0o755)

    def carry_out(script: str, **variables: str) -> list[list[str]]:
        calls = tmp_path / "calls"
        environment = os.environ | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "CALLS": str(calls),
            "JOBS": str(JOBS),
            "POLICY_BASE_URL": "http://model:8000/v1",
            "POLICY_MODEL_NAME": "m",
            "RAY_START_S": "0",
            **variables,
        }
        subprocess.run(["bash", JOBS / script], check=True, cwd=tmp_path, env=environment, capture_output=True)
        return [json.loads(line) for line in calls.read_text().splitlines()]

    return carry_out


def parameters(described: Any, arguments: list[str]) -> Any:
    try:
        return build(described, read_configuration(described, Arguments(overrides=tuple(arguments))))
    finally:
        reset_global_config()


def only(calls: list[list[str]], name: str) -> list[str]:
    [call] = [call for call in calls if call[0] == name]
    return call[1:]


def test_the_array_collects_shards_and_the_aggregation_waits_for_them(carried_out: Any, tmp_path: Path) -> None:
    array, aggregation = carried_out("slurm_submit.sh")
    assert array == ["sbatch", "--parsable", str(JOBS / "slurm_shards.sbatch")]
    assert aggregation[1:] == ["--dependency=afterok:4711", "--kill-on-invalid-dep=yes", aggregation[3]]
    (tmp_path / "calls").unlink()
    calls = carried_out("slurm_shards.sbatch", SLURM_ARRAY_TASK_ID="3", SLURM_CPUS_PER_TASK="8")
    shard = parameters(CollectRolloutsConfig, only(calls, "ng_collect_rollouts"))
    assert (shard.shard, shard.workers, shard.disable_aggregation) == ("3/16", 8, True)
    assert "#SBATCH --array=0-15\n" in (JOBS / "slurm_shards.sbatch").read_text()
    for number in range(16):
        path = tmp_path / "results" / f"rollouts-{number:02}-of-16.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert str(shard.output) == str(tmp_path / "results" / "rollouts-03-of-16.jsonl")
    merged = parameters(AggregateRolloutsConfig, only(carried_out("slurm_aggregate.sbatch"), "ng_aggregate_rollouts"))
    assert merged.input_glob.endswith("results/rollouts-*-of-16.jsonl")


def test_the_aggregation_refuses_to_begin_before_all_shards_are_there(carried_out: Any, tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        carried_out("slurm_aggregate.sbatch")
    assert b"of 16 shards" in caught.value.stderr


def test_ray_on_slurm_starts_a_head_then_the_others_then_one_collection(carried_out: Any) -> None:
    variables = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_CPUS_PER_TASK": "32"}
    calls = carried_out("slurm_ray.sbatch", **variables)
    steps = [" ".join(call[1:]) for call in calls if call[0] == "srun"]
    assert any("-w one ray start --head --node-ip-address=10.0.0.1 --port=6379" in step for step in steps)
    assert any("--nodes=2 --ntasks=2 --exclude=one ray start --address=10.0.0.1:6379" in step for step in steps)
    collection = parameters(CollectRolloutsConfig, only(calls, "ng_collect_rollouts"))
    assert (collection.executor, collection.worker_cpus) == ("ray", 4.0)


def test_a_ray_job_is_a_collection_on_ray(carried_out: Any) -> None:
    submit = only(carried_out("ray_job.sh"), "ray")
    assert submit[:2] == ["job", "submit"]
    arguments = submit[submit.index("--") + 1 :]
    assert arguments[0] == "ng_collect_rollouts"
    assert parameters(CollectRolloutsConfig, arguments[1:]).executor == "ray"


def test_kuberay_takes_a_job_whose_gyms_are_not_on_the_head() -> None:
    job = yaml.safe_load((JOBS / "kuberay_rayjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert set(job["spec"]) <= {
        *("entrypoint", "rayClusterSpec", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "backoffLimit"),
        *("runtimeEnvYAML", "submissionMode", "suspend", "activeDeadlineSeconds", "submitterPodTemplate"),
    }
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        check_pod(group["template"]["spec"])
    [gyms] = cluster["workerGroupSpecs"]
    assert gyms["minReplicas"] <= gyms["replicas"] <= gyms["maxReplicas"]
    program, *arguments = shlex.split(job["spec"]["entrypoint"])
    assert program == "ng_collect_rollouts"
    assert parameters(CollectRolloutsConfig, arguments).executor == "ray"


def test_kubernetes_gives_every_pod_its_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLICY_API_KEY", "k")
    job = yaml.safe_load((JOBS / "kubernetes_shards.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    check_by_schema(job)
    spec = job["spec"]
    assert (spec["completionMode"], spec["template"]["spec"]["restartPolicy"]) == ("Indexed", "Never")
    check_pod(spec["template"]["spec"])
    [container] = spec["template"]["spec"]["containers"]
    arguments = [argument.replace("$(JOB_COMPLETION_INDEX)", "5") for argument in container["args"]]
    wanted = parameters(CollectRolloutsConfig, arguments)
    assert wanted.shard == f"5/{spec['completions']}"
    assert wanted.drain_timeout_s < spec["template"]["spec"]["terminationGracePeriodSeconds"]


def check_pod(pod: dict[str, Any]) -> None:
    """A pod of which Kubernetes knows every field, with limits, and with mounts of volumes that are there."""
    check_by_schema({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": pod})
    volumes = {volume["name"] for volume in pod.get("volumes", ())}
    for container in pod["containers"]:
        assert {mount["name"] for mount in container.get("volumeMounts", ())} <= volumes
        assert set(container["resources"]) == {"requests", "limits"}


def check_by_schema(manifest: dict[str, Any]) -> None:
    """Check against the schemas that Kubernetes publishes; without the package that has them, nothing is checked."""
    if importlib.util.find_spec("kubernetes_validate"):  # too large for the lowest versions' environment
        schemas = importlib.import_module("kubernetes_validate")
        schemas.validate(manifest, schemas.latest_version(), strict=True)
