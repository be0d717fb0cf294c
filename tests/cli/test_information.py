import json
import subprocess
import sys

import pytest

import nemo_gym
from nemo_gym.cli.information import DEPENDENCIES

HEAVY = {"fastapi", "aiohttp", "numpy", "hydra", "omegaconf", "pydantic", "ray", "pandas", "torch", "openai"}


def test_version_shows_what_is_installed(run):
    ran = run("ng_version")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"Rollout Gym v{nemo_gym.__version__}")
    for title in ("Python ", "Installation: ", "Key Dependencies:", "System:", "  CPUs: ", "  Memory: "):
        assert title in ran.out


def test_version_as_json(run):
    ran = run("ng_version", "+json=true")
    facts = json.loads(ran.out)
    assert set(facts) == {"nemo_gym", "python", "python_path", "installation_path", "dependencies", "system"}
    assert set(facts["dependencies"]) == set(DEPENDENCIES)
    assert set(facts["system"]) == {"os", "platform", "architecture", "processor", "cpus", "memory_gb"}
    assert facts["python_path"] == sys.executable


def test_version_flag_of_the_root(run):
    assert json.loads(run("ng", "--version", "--json").out)["nemo_gym"] == nemo_gym.__version__


def test_an_unknown_parameter_names_the_nearest(run):
    ran = run("ng_version", "+jsn=true")
    assert (ran.code, ran.out) == (2, "")
    assert "unknown parameter 'jsn'. Did you mean: 'json'?" in ran.err
    assert "hint: this command takes: json" in ran.err


@pytest.mark.parametrize("command", ["ng_help", "ng_version"])
def test_quick_commands_import_nothing_heavy(command):
    program = (
        f"import sys; from nemo_gym.cli.main import main; main([{command!r}]); sys.stderr.write(' '.join(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert HEAVY.isdisjoint(done.stderr.split())
