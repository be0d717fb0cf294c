"""Settings of programs: templates, ready-made ones, and mistakes that are found before anything runs."""

import pytest
from pydantic import ValidationError

from nemo_gym.errors import ConfigError
from nemo_gym.programs.program import READY_MADE, Program, fill, is_function_place, ready_made_programs

VALUES = {"base_url": "http://h/v1", "prompt": "say {model}", "model": "m", "mcp_url": ""}


def test_only_known_values_are_filled_in() -> None:
    template = '{"url": "{base_url}", "x": {"y": "{other}"}, "p": "{prompt}"}'
    assert fill(template, VALUES) == '{"url": "http://h/v1", "x": {"y": "{other}"}, "p": "say {model}"}'


def test_tools_are_used_only_if_the_environment_offers_them() -> None:
    program = Program.model_validate(
        {"command": ["x"], "with_tools": {"command": ["--mcp", "{mcp_url}"], "env": {"MCP": "1"}}}
    )
    assert program.filled(VALUES).command == ["x"]
    with_tools = program.filled({**VALUES, "mcp_url": "http://h/mcp/t"})
    assert with_tools.command == ["x", "--mcp", "http://h/mcp/t"]
    assert with_tools.environment == {"MCP": "1"}


@pytest.mark.parametrize("name", ready_made_programs())
def test_ready_made_programs_are_short_and_pinned(name: str) -> None:
    program = Program(program=name)
    assert program.install
    assert program.title == name
    settings = [line for line in (READY_MADE / f"{name}.yaml").read_text().splitlines() if not line.startswith("#")]
    assert next((number for number, line in enumerate(settings) if line.startswith("  ~/")), len(settings)) <= 10


def test_there_are_ready_made_programs() -> None:
    assert len(ready_made_programs()) >= 10


def test_settings_beside_a_ready_made_program_win() -> None:
    program = Program.model_validate({"program": "codex", "timeout_s": 5, "env": {"MORE": "1"}})
    assert program.timeout_s == 5
    assert {"MORE", "CODEX_HOME"} <= set(program.env)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"install": ["npm:thing"]}, "name a package and its version"),
        ({"files": {"../up": "x"}}, "must lie in the workspace"),
        ({"files": {"/etc/x": "x"}}, "must lie in the workspace"),
        ({"final_answer": "stdin"}, "must be text, stdout"),
        ({"command": ["x", "{mcp_url}"]}, "belongs under with_tools"),
        ({"with_tools": {"comand": []}}, "comand"),
    ],
)
def test_mistakes_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Program.model_validate(settings)


def test_an_unknown_program_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        Program(program="claude_code")
    assert "claude-code" in (caught.value.hint or "")


def test_a_function_is_named_by_its_file() -> None:
    assert is_function_place("agents/my_agent.py:solve")
    assert not any(map(is_function_place, ("codex", "my.yaml", "file.py", "host:80")))
