"""Recordings of real engines: our model servers still turn their answers into the same results."""

from typing import Any

import pytest

from nemo_gym.servers.http.connections import close_http_client
from responses_api_models.vllm_model.tests.engine_cases import CASES, MODEL
from responses_api_models.vllm_model.tests.engine_recordings import FOLDER, Recording, replaying

RECORDINGS = [Recording(path, path.stem) for path in sorted(FOLDER.glob("*.json"))]


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.engine)
@pytest.mark.parametrize("case", CASES)
async def test_a_recorded_engine_is_served_as_it_was(recording: Recording, case: str) -> None:
    recorded: dict[str, Any] = recording.load()["cases"][case]
    async with replaying(recorded["exchanges"]) as url:
        assert await CASES[case](url, MODEL) == recorded["result"]
        await close_http_client()
