import asyncio
import os
import signal

from nemo_gym.rollouts.stopping import StopSwitch, on_signals


def test_the_second_request_is_more_urgent() -> None:
    switch, heard = StopSwitch(drain_s=30), []
    switch.connect(heard.append)
    assert not switch.is_on
    switch.press()
    switch.press()
    assert switch.is_on
    assert heard == [30, 0]


def test_a_switch_that_is_on_already_tells_a_late_listener() -> None:
    switch, heard = StopSwitch(drain_s=30), []
    switch.press()
    switch.connect(heard.append)
    assert heard == [30]


async def test_signals_press_the_switch_and_are_given_back_afterwards() -> None:
    switch, said = StopSwitch(drain_s=30), []
    before = signal.getsignal(signal.SIGTERM)
    with on_signals(switch, said.append):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.01)
        assert switch.is_on
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0.01)
    assert said[0].startswith("SIGTERM: starting no more rollouts")
    assert said[1] == "SIGINT: stopping now"
    assert signal.getsignal(signal.SIGTERM) == before
