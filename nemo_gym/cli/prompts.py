"""``ng_materialize_prompts``, and the check of a prompt template before it is used."""

from collections.abc import Sequence

from pydantic import ValidationError

from nemo_gym.cli.outcome import Exit
from nemo_gym.cli.settings import read_parameters
from nemo_gym.errors import ConfigError
from nemo_gym.prompt import MaterializePromptsConfig, load_prompt_config
from nemo_gym.prompt import materialize_prompts as materialize


def materialize_prompts(overrides: Sequence[str]) -> int:
    """Fill the template for every row and save the rows."""
    config = read_parameters(MaterializePromptsConfig, overrides)
    check_prompt(config.prompt_config)
    materialize(config.input_jsonl_fpath, config.prompt_config, config.output_jsonl_fpath)
    return Exit.OK


def check_prompt(path: str | None) -> None:
    """Say what is wrong with a prompt template file in words rather than with a traceback."""
    if path is None:
        return
    try:
        load_prompt_config(path)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        reasons = "; ".join(f"{'.'.join(map(str, detail['loc'])) or 'the file'}: {detail['msg']}" for detail in details)
        raise ConfigError(
            f"{path} is no prompt template ({reasons})",
            hint="it needs a text under user:, and may have one under system:",
        ) from None
