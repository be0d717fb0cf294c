"""Skills that a run hands to its agents. See ``nemo_gym.rollouts.skills``."""

from nemo_gym.rollouts.skills import (
    SkillMetadata,
    SkillsConfig,
    SkillsRef,
    hash_skill_dir,
    load_skill_directory,
    parse_skill_md,
    stage_skills,
)

__all__ = [
    "SkillMetadata",
    "SkillsConfig",
    "SkillsRef",
    "hash_skill_dir",
    "load_skill_directory",
    "parse_skill_md",
    "stage_skills",
]
