"""YAML that bites: refused at once, with the place, and without a traceback."""

from pathlib import Path

import pytest
import yaml

from nemo_gym.config.sources import load_yaml
from nemo_gym.errors import ConfigError
from nemo_gym.io.yaml_text import MAX_ALIASED, MAX_DEPTH, read_yaml

ALIAS_BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 20))
BITING = {
    "an alias bomb": (ALIAS_BOMB, "aliases that stand for more than"),
    "an alias of itself": ("a: &a [*a]\n", "an alias inside the value"),
    "deep brackets": ("a: " + "[" * 100_000 + "]" * 100_000 + "\n", "levels of nesting"),
    "deep brackets that never close": ("a: " + "{" * 100_000 + "\n", "levels of nesting"),
    "deep indentation": ("".join(f"{' ' * n}a:\n" for n in range(500)), "levels of nesting"),
    "a long number": (f"a: {'7' * 5000}\n", "a number of more than 4000 digits"),
    "a long negative number": (f"a: -{'1_' * 3000}1\n", "a number of more than 4000 digits"),
}


@pytest.mark.parametrize("name", BITING)
def test_a_file_that_bites_is_refused_with_its_place(name: str, tmp_path: Path) -> None:
    text, reason = BITING[name]
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=reason) as error:
        load_yaml(path, label="config.yaml")
    assert str(error.value).startswith("config.yaml:")
    with pytest.raises(yaml.YAMLError, match=reason):
        read_yaml(text)


def test_what_people_write_is_read() -> None:
    text = "base: &base {x: 1}\ncopies: [*base, *base]\nlong: '" + "7" * 5000 + "'\nmerged:\n  <<: *base\n  y: 2\n"
    found = read_yaml(text)
    assert found["copies"] == [{"x": 1}, {"x": 1}]
    assert found["merged"] == {"x": 1, "y": 2}
    assert len(found["long"]) == 5000
    assert read_yaml("") is None


def test_the_limits_are_where_they_are_said_to_be() -> None:
    nested = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert read_yaml(nested) is not None
    with pytest.raises(yaml.YAMLError):
        read_yaml(f"[{nested}]")
    items = ", ".join("x" * 999)  # with the list itself a thousand values
    whole = f"a: &a [{items}]\n" + "b: [" + ", ".join(["*a"] * (MAX_ALIASED // 1000)) + "]\n"
    assert len(read_yaml(whole)["b"]) == 100
    with pytest.raises(yaml.YAMLError):
        read_yaml(whole + "c: *a\n")
    assert read_yaml("a: " + "7" * 4000)["a"] > 0
