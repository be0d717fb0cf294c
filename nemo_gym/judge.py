"""Front door: LLM-as-judge for verifiers. The work is done in ``nemo_gym.servers.judge``."""

from nemo_gym.servers.judge import Judge, JudgeError
from nemo_gym.servers.verdicts import JudgeConfig, SwapCheck, Verdict

__all__ = ["Judge", "JudgeConfig", "JudgeError", "SwapCheck", "Verdict"]
