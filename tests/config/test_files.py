from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_gym.config.locate import find_env_file
from nemo_gym.config.sources import load_yaml
from nemo_gym.errors import ConfigError

Write = Callable[[str, str], Path]


def error_of(path: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_yaml(path, label=path.name)
    return caught.value


@pytest.mark.parametrize("text", ["", "# nothing but a comment\n", "{}"])
def test_an_empty_file_is_an_empty_mapping(write: Write, text: str) -> None:
    assert load_yaml(write("a.yaml", text), label="a.yaml") == {}


def test_values_are_not_resolved(write: Write) -> None:
    text = "a: ${b}\nb: ???\nc: 2024-01-01\nd: [1, {e: null}]\n"
    assert load_yaml(write("a.yaml", text), label="a.yaml") == {
        "a": "${b}",
        "b": "???",
        "c": "2024-01-01",
        "d": [1, {"e": None}],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: c: d\n", "a.yaml:2:5: malformed YAML: mapping values are not allowed here"),
        ("a: 1\nb: [1,\n", "a.yaml:3:1: malformed YAML: while parsing a flow node"),
        ("\ta: 1\n", "a.yaml:1:1: malformed YAML: while scanning for the next token"),
        ("a: 1\nb: 2\na: 3\n", "a.yaml:3:1: malformed YAML: while constructing a mapping, found duplicate key a"),
        ("x:\n  y: 1\n  y: 2\n", "a.yaml:3:3: malformed YAML: while constructing a mapping, found duplicate key y"),
        ("a: 1\n---\nb: 2\n", "a.yaml:2:1: malformed YAML: expected a single document"),
        ("a: !custom 1\n", "a.yaml:1:4: malformed YAML: could not determine a constructor for the tag"),
        ("a: \x01\n", "a.yaml: malformed YAML: it contains a character that is not allowed"),
    ],
)
def test_malformed_yaml_is_reported_with_line_and_column(write: Write, text: str, message: str) -> None:
    error = error_of(write("a.yaml", text))
    assert str(error).startswith(message)
    assert error.hint


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words\n", "42\n", "true\n"])
def test_the_top_level_must_be_a_mapping(write: Write, text: str) -> None:
    error = error_of(write("a.yaml", text))
    assert str(error) == "a.yaml: the top level is not a mapping of keys to values"


def test_a_malformed_interpolation_names_its_key(write: Write) -> None:
    error = error_of(write("a.yaml", "a:\n  b: ${unclosed\n"))
    assert str(error) == "a.yaml: the value of 'a.b' contains a malformed ${...} expression"


def test_a_value_of_a_strange_type_names_its_key(write: Write) -> None:
    error = error_of(write("a.yaml", "a:\n  b: !!set {x, y}\n"))
    assert str(error).startswith("a.yaml: the value of 'a.b' is not text")


def test_text_in_another_encoding_is_refused(work_dir: Path) -> None:
    path = work_dir / "a.yaml"
    path.write_bytes("a: ü".encode("latin-1"))
    assert str(error_of(path)) == "a.yaml: not UTF-8 text (byte 3)"


def test_a_directory_is_no_file(work_dir: Path) -> None:
    (work_dir / "folder.yaml").mkdir()
    assert str(error_of(work_dir / "folder.yaml")).startswith("folder.yaml: can't be read (")


@pytest.mark.parametrize(
    "value",
    ["hunter2: x", "*hunter2", "!hunter2 x", "&hunter2 a\nb: &hunter2 c\nd: *hunter2\ne: *no", '"hunter2', "${hunter2"],
)
def test_secrets_never_appear_in_an_error(write: Write, value: str) -> None:
    error = error_of(write("env.yaml", f"policy_api_key: {value}\n"))
    assert "hunter2" not in f"{error} {error.hint}"


def test_an_env_file_of_the_installation_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    installation, here = tmp_path / "installation", tmp_path / "here"
    for folder in (installation, here):
        folder.mkdir()
    (installation / "env.yaml").write_text("a: 1\n")
    monkeypatch.setattr("nemo_gym.config.locate.INSTALL_DIR", installation)
    monkeypatch.chdir(here)
    with caplog.at_level("INFO"):
        assert find_env_file() == installation / "env.yaml"
        assert f"using {installation / 'env.yaml'} of the installation" in caplog.text
        caplog.clear()
        (here / "env.yaml").write_text("a: 2\n")
        assert find_env_file() == here / "env.yaml"
    assert not caplog.text
