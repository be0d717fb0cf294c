from pathlib import Path

import pytest

from nemo_gym.data.dockerfiles import CopyStep, ImageRecipe, RunStep, needs_network, read_dockerfile


def read(tmp_path: Path, text: str) -> ImageRecipe:
    path = tmp_path / "Dockerfile"
    path.write_text(text)
    return read_dockerfile(path)


def test_steps_are_read_in_order_with_their_folders_and_users(tmp_path: Path) -> None:
    recipe = read(
        tmp_path,
        "# syntax=docker/dockerfile:1\nFROM --platform=linux/amd64 debian:12 AS it\nWORKDIR /a\nCOPY one.txt .\n"
        "WORKDIR b\nUSER worker\nRUN make it \\\n    # in between\n    all\nCOPY --chmod=755 x y/\nCMD sleep 1\n",
    )
    assert recipe.base == "debian:12"
    assert recipe.steps == [
        CopyStep(("one.txt",), "/a", into=True),
        RunStep(("/bin/sh", "-c", "make it      all"), "/a/b", "worker", 7),
        CopyStep(("x",), "/a/b/y", into=True, mode=0o755),
    ]
    assert (recipe.workdir, recipe.user, recipe.obstacles) == ("/a/b", "worker", [])


def test_variables_are_filled_in_as_an_engine_would(tmp_path: Path) -> None:
    recipe = read(
        tmp_path,
        'ARG tag=12\nFROM debian:${tag}\nARG where=/srv\nENV A=1 B="two words" C=${where}/x\nENV OLD form of it\n'
        "ENV D=${NONE:-other} E=${A:+set} PATH=/opt:$PATH\nWORKDIR $where\nCOPY f $C/\n",
    )
    assert recipe.base == "debian:12"
    assert recipe.environment == {
        "A": "1", "B": "two words", "C": "/srv/x", "OLD": "form of it", "D": "other", "E": "set", "PATH": "/opt:$PATH",
    }  # fmt: skip
    assert recipe.workdir == "/srv"
    assert recipe.steps == [CopyStep(("f",), "/srv/x", into=True)]


@pytest.mark.parametrize(
    ("line", "obstacle"),
    [
        ("FROM other", "several stages"),
        ("RUN apt-get update && apt-get install -y curl", "line 2 needs a network: apt-get update"),
        ("RUN set -e; pip install pytest", "needs a network: pip install"),
        ("COPY --from=builder /a /b", "out of another image"),
        ("ADD https://example.com/x /x", "is not supported"),
        ("ADD files.tar.gz /", "is not supported"),
        ("RUN <<EOF", "here-documents"),
        ('SHELL ["/bin/bash"]', "SHELL is not supported"),
        ("COPY alone", "needs a source and a target"),
    ],
)
def test_what_a_world_can_not_do_is_an_obstacle(tmp_path: Path, line: str, obstacle: str) -> None:
    (found,) = read(tmp_path, f"FROM debian\n{line}\n").obstacles
    assert obstacle in found


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("curl -sf http://localhost:80/", None),
        ("echo apt-get install", None),
        ("pip install --no-index wheels/*.whl", None),
        ("# wget http://x", None),
        ("git clone /srv/repository", None),
        ("sudo apt-get -y -q install git", "apt-get -y -q install"),
        ("cd /x && git clone https://example.com/r", "git clone https:"),
        ("A=1 wget -q http://example.com", "wget"),
        ("uvx pytest /tests", "uvx"),
    ],
)
def test_commands_that_need_a_network_are_recognized(command: str, found: str | None) -> None:
    assert needs_network(command) == found
