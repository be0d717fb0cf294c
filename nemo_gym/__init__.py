"""Rollout Gym: plans, runs, saves and scores rollouts of LLM agents.

The package name and its public modules are those of NeMo Gym, so that environments, configurations and scripts
written for it run unchanged.
"""

from pathlib import Path

__version__ = "0.1.0"

ROOT_DIR = Path(__file__).absolute().parent
PARENT_DIR = ROOT_DIR.parent
WORKING_DIR = PARENT_DIR if (PARENT_DIR / "pyproject.toml").exists() else Path.cwd()
CACHE_DIR = WORKING_DIR / "cache"
RESULTS_DIR = WORKING_DIR / "results"
