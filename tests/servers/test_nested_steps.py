"""Steps inside steps, whichever of the servers lives in a process of its own."""

from collections.abc import Callable

from omegaconf import DictConfig

from nemo_gym.servers.gym import host_gym
from nemo_gym.steps.recording import current_span, first_span


async def test_calls_of_one_server_by_another_are_nested(gym_config: Callable[..., DictConfig]) -> None:
    """Whether both live in this process, the called one in its own, or the calling one."""
    found = []
    for isolated in ((), ("b",), ("a",)):
        settings = {name: {"isolation": "process"} if name in isolated else {} for name in ("a", "b")}
        settings["a"]["other"] = "b"
        async with host_gym(gym_config(**settings)) as gym:
            span = first_span()
            current_span.set(span)
            answer = await gym.client.post("a", "/ask_other", json={"name": "you"})
            current_span.set(None)
            assert await answer.json() == {"text": "hello, you"}
            steps = span.trail.steps
            found.append([(step.kind, step.server, step.route, step.parent, step.status) for step in steps])
            outer, inner = steps
            assert outer.start <= inner.start <= inner.end <= outer.end + 1e-5
    assert found[0] == [("tool", "a", "/ask_other", None, 200), ("call", "b", "/greet", 0, 200)]
    assert found[1] == found[0]
    assert [step[1:] for step in found[2]] == [step[1:] for step in found[0]]


async def test_a_streamed_answer_has_the_calls_made_while_it_was_sent(gym_config: Callable[..., DictConfig]) -> None:
    for isolated in ({}, {"isolation": "process"}):
        async with host_gym(gym_config(a={"other": "b", **isolated}, b={})) as gym:
            span = first_span()
            current_span.set(span)
            answer = await gym.client.post("a", "/stream_other", json={"name": "you"})
            current_span.set(None)
            assert await answer.read() == b'they say: {"text":"hello, you"}'
            steps = span.trail.steps
        assert [(step.server, step.route, step.parent) for step in steps] == [
            ("a", "/stream_other", None),
            ("b", "/greet", 0),
        ]
        assert steps[0].bytes_in == len(await answer.read())
