"""A program as the agent: a script of twelve lines, or the one that is named: python examples/program_agent.py codex

Programs of this kind need a large model, so the model here is a recording: it says what a model once said, for whatever
shell tool the program offers. With a real endpoint:

    ng_collect_rollouts examples/program_agent.py --agent codex --model openai:gpt-5
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

import nemo_gym

environment = nemo_gym.Environment(
    tasks=[{"prompt": "Write hello into the file hello.txt in this folder.", "workspace_files": {"notes.txt": "hi"}}]
)


@environment.verify
def verify(task: dict[str, Any], response: Any) -> float:
    """Look at the workspace, not at what the agent says about it."""
    del response
    return float(task.get("workspace", {}).get("files", {}).get("hello.txt", "").strip() == "hello")


async def recorded(request: Mapping[str, Any]) -> Any:
    """The recording: a shell command first, then the answer."""
    if any(item.get("type") == "function_call_output" for item in request["input"]):
        return "I have written hello.txt."
    shells = {"shell", "exec_command", "Bash", "bash", "run_shell_command"}
    tool = next(tool for tool in request["tools"] if tool.get("name") in shells)
    argument = "cmd" if "cmd" in tool["parameters"]["properties"] else "command"
    arguments = json.dumps({argument: "echo hello > hello.txt", "description": "Write the file"})
    return {"type": "function_call", "name": tool["name"], "call_id": "call_1", "arguments": arguments}


if __name__ == "__main__":
    agent = sys.argv[1] if len(sys.argv) > 1 else "examples/shell_agent.yaml"
    run = nemo_gym.collect("examples/program_agent.py", agent=agent, model=recorded)
    for rollout in run:
        print("reward", rollout.reward, "-", rollout.text)
        print(rollout.fields["workspace"]["diff"])
