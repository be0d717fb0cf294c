import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from nemo_gym.config.addresses import is_free
from nemo_gym.config.instances import read_instances
from nemo_gym.errors import ConfigError
from nemo_gym.global_config import find_open_port

Write = Callable[[str, Any], Path]
Parse = Callable[..., DictConfig]
Failure = Callable[..., ConfigError]


def models(**settings: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {"responses_api_models": {"impl": {"entrypoint": "app.py", **extra}}} for name, extra in settings.items()
    }


@pytest.fixture
def busy() -> Any:
    """A port that somebody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_every_server_gets_loopback_and_its_own_port(parse: Parse) -> None:
    config = parse(initial=models(**{f"m{index}": {} for index in range(30)}))
    instances = read_instances(config)
    assert {instance.host for instance in instances} == {"127.0.0.1"}
    ports = [instance.port for instance in instances]
    assert len(set(ports)) == 30
    assert all(10001 <= port <= 20000 for port in ports)
    assert config.disallowed_ports == [11000, *ports]


def test_an_assigned_port_is_reserved_until_the_next_configuration_but_servers_can_listen_on_it(parse: Parse) -> None:
    [instance] = read_instances(parse(initial=models(a={})))
    choose = f"from nemo_gym.config.addresses import is_free; print(is_free({instance.port}))"
    listen = f"import asyncio; asyncio.run(asyncio.start_server(print, '127.0.0.1', {instance.port})); print('listens')"
    for program, printed in ((choose, "False"), (listen, "listens")):
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert result.stdout.strip() == printed
    parse(initial=models(b={"port": instance.port + 1}))
    assert is_free(instance.port)


def test_the_port_range_can_be_chosen_and_is_used_to_the_last_port(parse: Parse) -> None:
    low = find_open_port(port_range_low=21000, port_range_high=29000)
    free = [port for port in range(low, low + 40) if is_free(port)][:4]
    others = [port for port in range(free[0], free[-1] + 1) if port not in free]
    config = parse(
        f"+port_range_low={free[0]}",
        f"+port_range_high={free[-1]}",
        f"+disallowed_ports={others}",
        initial=models(a={}, b={}, c={}, d={}),
    )
    assert sorted(instance.port for instance in read_instances(config)) == free


def test_a_busy_port_is_never_assigned(busy: int, failure: Failure) -> None:
    error = failure(f"+port_range_low={busy}", f"+port_range_high={busy}", initial=models(a={}))
    assert str(error) == f"no free port found between {busy} and {busy} (1 tried)"
    assert "++port_range_low=" in str(error.hint)


def test_ports_of_others_are_never_assigned(parse: Parse) -> None:
    port = find_open_port()
    initial = models(a={}, b={"port": port})
    low, high = f"+port_range_low={port}", f"+port_range_high={port + 50}"
    assert read_instances(parse(low, high, initial=initial))[0].port != port


def test_a_given_address_is_kept(parse: Parse) -> None:
    config = parse(initial=models(a={"host": "0.0.0.0", "port": 18123}))
    instance = read_instances(config)[0]
    assert (instance.host, instance.port) == ("0.0.0.0", 18123)
    assert 18123 in config.disallowed_ports


def test_two_servers_with_the_same_port_are_refused(write: Write, failure: Failure) -> None:
    write("a.yaml", models(a={"port": 18000}, b={"port": 18000}))
    error = failure("+config_paths=[a.yaml]")
    assert str(error) == ("a.yaml:10: 'b.responses_api_models.impl.port' is 18000, which 'a' already uses on 127.0.0.1")
    assert error.hint


def test_the_same_port_on_other_hosts_is_fine(parse: Parse) -> None:
    parse(initial=models(a={"port": 18000, "host": "10.0.0.1"}, b={"port": 18000, "host": "10.0.0.2"}))


def test_the_head_servers_port_is_taken(failure: Failure) -> None:
    assert "which 'head_server' already uses on 127.0.0.1" in str(failure(initial=models(a={"port": 11000})))


def test_the_default_host_can_be_chosen(parse: Parse) -> None:
    config = parse("+default_host=10.1.2.3", initial=models(a={}))
    assert read_instances(config)[0].host == "10.1.2.3"
    assert config.head_server == {"host": "10.1.2.3", "port": 11000}


def test_the_default_host_can_be_this_machines_address(parse: Parse) -> None:
    config = parse("+use_absolute_ip=true", initial=models(a={}))
    assert config.default_host == socket.gethostbyname(socket.gethostname())


def test_the_head_server_has_a_default_address(parse: Parse) -> None:
    assert parse().head_server == {"host": "127.0.0.1", "port": 11000}


def test_the_head_server_can_be_elsewhere(parse: Parse) -> None:
    config = parse("+head_server={host: 10.0.0.1, port: 12000}")
    assert config.head_server == {"host": "10.0.0.1", "port": 12000}
    assert config.disallowed_ports == [12000]


@pytest.mark.parametrize(
    ("given", "address"),
    [("+head_server.port=12000", "127.0.0.1 12000"), ("+head_server.host=0.0.0.0", "0.0.0.0 11000")],
)
def test_half_an_address_of_the_head_server_is_completed(parse: Parse, given: str, address: str) -> None:
    head = parse(given).head_server
    assert f"{head.host} {head.port}" == address


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+port_range_low=many", "command line: port_range_low: "),
        ("+error_on_almost_servers=perhaps", "command line: error_on_almost_servers: "),
        ("+port_range_low=20001", "'port_range_low' is greater than 'port_range_high'"),
        ("+default_host=${nothing}", "command line: 'default_host' needs ${nothing}, which is not set"),
    ],
)
def test_wrong_global_values_name_their_key(failure: Failure, override: str, message: str) -> None:
    assert message in str(failure(override))


def test_find_open_port_avoids_disallowed_ports() -> None:
    port = find_open_port()
    assert find_open_port([port], port_range_low=port, port_range_high=port + 20) != port


def test_find_open_port_gives_up_with_advice(busy: int) -> None:
    with pytest.raises(ConfigError, match="no free port found"):
        find_open_port(port_range_low=busy, port_range_high=busy)
