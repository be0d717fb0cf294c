"""Help, the reference of commands, and ng_version."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import BaseModel, Field

import nemo_gym
from nemo_gym import PARENT_DIR
from nemo_gym.cli.commands import COMMANDS
from nemo_gym.cli.manual import DEPENDENCIES, parameters_of, type_text, value_text
from nemo_gym.errors import ExitCode

_spec = importlib.util.spec_from_file_location("reference_pages", PARENT_DIR / "scripts" / "reference_pages.py")
assert _spec is not None
assert _spec.loader is not None
pages = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(pages)


class Inner(BaseModel):
    host: str
    port: int = 1


class Example(BaseModel):
    optional: int | None = Field(default=None, description="A number\n   or none.")
    required: str
    short: bool = Field(default=True, alias="renamed")


def test_required_parameters_come_first_under_the_names_people_type():
    assert [(p.name, p.type, p.required, p.default, p.description) for p in parameters_of(Example)] == [
        ("required", "str", True, "", ""),
        ("optional", "int or null", False, "null", "A number or none."),
        ("renamed", "bool", False, "true", ""),
    ]


class Shared(BaseModel):
    help_section: ClassVar[str] = "Shared options"

    often: int = 1


class Special(Shared):
    needed: str
    own: int = 2


def test_parameters_of_a_command_come_before_the_options_that_it_shares_with_others():
    parameters = [(parameter.section, parameter.name) for parameter in parameters_of(Special)]
    assert parameters == [("", "needed"), ("", "own"), ("Shared options", "often")]


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "int"),
        (int | None, "int or null"),
        (Literal["a", "b"], "a | b"),
        (list[str], "list of str"),
        (dict[str, Any], "dict"),
        (Annotated[int, Field(ge=1)] | None, "int or null"),
        (Inner, "{host: str, port: int}"),
        (Any, "any"),
        (list, "list"),
    ],
)
def test_types_are_named_in_plain_words(annotation, text):
    assert type_text(annotation) == text


def test_values_are_shown_the_way_they_are_typed():
    shown = [value_text(value) for value in (None, True, 1.5, "text", "", [], {}, Inner(host="h"))]
    assert shown == ["null", "true", "1.5", "text", '""', "[]", "{}", '{"host": "h", "port": 1}']


def test_help_lists_every_command_with_one_line(run):
    ran = run("ng_help")
    assert (ran.code, ran.err) == (0, "")
    for command in COMMANDS:
        assert any(line.split()[:1] == [command.script] and command.summary in line for line in ran.out.splitlines())


def test_help_of_a_group_lists_its_commands_only(run):
    ran = run("ng", "eval", "--help")
    assert ran.code == 0
    assert "ng_collect_rollouts" in ran.out
    assert "ng_run " not in ran.out


@pytest.mark.parametrize("argv", [("ng",), ("gym", "env")])
def test_no_command_at_all_shows_help_as_a_reminder(run, argv):
    ran = run(*argv)
    assert (ran.code, ran.out) == (1, "")
    assert "ng_run" in ran.err


def test_help_takes_no_parameters(run):
    ran = run("ng_help", "+verbose=true")
    assert ran.code == 2
    assert ran.err == "error: ng_help takes no parameters\n\nhint: for one command: ng_collect_rollouts --help\n"


@pytest.mark.parametrize("word", ["-h", "--help", "+h=true", "+help=true"])
def test_help_of_a_command_shows_parameters_and_examples(run, word):
    ran = run("ng_test_all", word)
    assert (ran.code, ran.err) == (0, "")
    assert "+num_shards=<int>  (default 1)" in ran.out
    assert "Divide the servers into this many parts" in ran.out
    assert "ng_test_all +num_shards=4 +shard_index=0" in ran.out
    assert "nemo_gym_test_all, ng env test-all, ng test_all" in ran.out


def test_help_tells_required_parameters_and_flags(run):
    ran = run("ng", "env", "packages", "-h")
    assert "+entrypoint=<str>  (required)" in ran.out
    assert "--resources-server" in ran.out


def test_help_of_open_ended_commands_mentions_other_keys(run):
    assert "++a.b=value" in run("ng_run", "-h").out


@pytest.mark.parametrize("words", [["collect_rollouts"], ["ng_collect_rollouts"], ["eval", "run"]])
def test_help_about_a_command_can_be_asked_for_by_name(run, words):
    assert run("ng", "help", *words).out == run("ng_collect_rollouts", "--help").out


def test_help_about_a_group_and_about_nothing_that_exists(run):
    assert run("ng", "help", "eval").out == run("ng", "eval", "--help").out
    ran = run("ng", "help", "collect_rolouts")
    assert ran.code == 2
    assert "Did you mean: 'collect_rollouts'" in ran.err


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_has_working_help(run, command):
    ran = run(command.script, "--help")
    assert (ran.code, ran.err) == (0, "")
    for example in command.examples:
        assert example in ran.out


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_parameter_is_described(command):
    described = command.load_parameters()
    undescribed = [p.name for p in parameters_of(described) if not p.description] if described else []
    assert undescribed == []


DOCUMENT = PARENT_DIR / "docs" / "commands.md"


def test_every_command_is_documented():
    documented = re.findall(r"^## (ng_\w+)$", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    assert documented == [command.script for command in COMMANDS]


def test_the_document_agrees_with_the_table_of_commands():
    document = DOCUMENT.read_text("utf-8")
    assert document == pages.commands_page(document), "run: python scripts/reference_pages.py"


def test_exit_codes_are_documented():
    documented = re.findall(r"^\| (\d+) \|", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    assert documented == [str(code.value) for code in ExitCode]


CONFIG = """\
{name}_resources:
  resources_servers:
    any:
      entrypoint: app.py
      domain: {domain}
{name}_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {{type: resources_servers, name: {name}_resources}}
      model_server: {{type: responses_api_models, name: policy_model}}
      datasets:
      - name: {name}
        type: benchmark
        jsonl_fpath: data.jsonl
        prepare_script: prepare.py
        prompt_config: null
        num_repeats: 4
"""


def add_benchmark(name: str, text: str) -> None:
    folder = Path("benchmarks") / name
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(text)


@pytest.fixture
def benchmarks(workspace):
    add_benchmark("zz_algebra", CONFIG.format(name="zz_algebra", domain="math"))
    add_benchmark("zz_poems", CONFIG.format(name="zz_poems", domain="translation"))


def test_benchmarks_are_listed_as_a_table(run, benchmarks):
    ran = run("ng_list_benchmarks", "+query=zz_")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        "Benchmark name  Domain       Agent name        Num repeats",
        "--------------  -----------  ----------------  -----------",
        "zz_algebra      math         zz_algebra_agent  4",
        "zz_poems        translation  zz_poems_agent    4",
    ]


def test_benchmarks_are_listed_as_json(run, benchmarks):
    ran = run("ng", "list", "benchmarks", "--json", "--query", "zz_algebra")
    expected = {"name": "zz_algebra", "agent_name": "zz_algebra_agent", "domain": "math", "num_repeats": 4}
    assert expected in json.loads(ran.out)


@pytest.mark.parametrize(
    ("query", "found"), [("translation", True), ("tranlsation", True), ("zz_poem", True), ("xyz", False)]
)
def test_a_query_finds_what_contains_it_or_is_like_it(run, benchmarks, query, found):
    assert ("zz_poems" in run("ng_list_benchmarks", f"+query={query}").out) is found


def test_that_nothing_was_found_is_said(run):
    ran = run("ng_list_benchmarks", "+query=nothing-like-it")
    assert (ran.code, ran.out, ran.err) == (0, "", "no benchmarks found for 'nothing-like-it'\n")


def test_a_broken_benchmark_is_reported_and_left_out(run, benchmarks):
    add_benchmark("zz_broken", "a: [\n")
    ran = run("ng_list_benchmarks", "+query=zz_")
    assert ran.code == 0
    assert "zz_algebra" in ran.out
    assert "warning: benchmark zz_broken is left out: " in ran.err


def test_a_configuration_without_a_benchmark_dataset_is_not_a_benchmark(run, workspace):
    add_benchmark("zz_bare", "x: 1\n")
    assert json.loads(run("ng_list_benchmarks", "+query=zz_bare", "+json=true").out) == []


HEAVY = {"fastapi", "aiohttp", "numpy", "hydra", "omegaconf", "pydantic", "ray", "pandas", "torch", "openai"}


def test_version_shows_what_is_installed(run):
    ran = run("ng_version")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"Rollout Gym v{nemo_gym.__version__}")
    for title in ("Python ", "Installation: ", "Key Dependencies:", "System:", "  CPUs: ", "  Memory: "):
        assert title in ran.out


def test_version_as_json(run):
    ran = run("ng_version", "+json=true")
    facts = json.loads(ran.out)
    assert set(facts) == {"nemo_gym", "python", "python_path", "installation_path", "dependencies", "system"}
    assert set(facts["dependencies"]) == set(DEPENDENCIES)
    assert set(facts["system"]) == {"os", "platform", "architecture", "processor", "cpus", "memory_gb"}
    assert facts["python_path"] == sys.executable


def test_version_flag_of_the_root(run):
    assert json.loads(run("ng", "--version", "--json").out)["nemo_gym"] == nemo_gym.__version__


def test_an_unknown_parameter_names_the_nearest(run):
    ran = run("ng_version", "+jsn=true")
    assert (ran.code, ran.out) == (2, "")
    assert "unknown parameter 'jsn'. Did you mean: 'json'?" in ran.err
    assert "hint: this command takes: json" in ran.err


@pytest.mark.parametrize("command", ["ng_help", "ng_version"])
def test_quick_commands_import_nothing_heavy(command):
    program = (
        f"import sys; from nemo_gym.cli.main import main; main([{command!r}]); sys.stderr.write(' '.join(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert HEAVY.isdisjoint(done.stderr.split())


def test_environments_are_listed_with_what_they_need(run):
    rows = {row["name"]: row for row in json.loads(run("ng_list_environments", "+json=true").out)}
    assert rows["calculator"]["domain"] == "math"
    assert rows["calculator"]["licence"] == "Apache 2.0"
    assert "calculator" in run("ng", "list", "environments", "--query", "arithmetic").out
    assert "simple_agent" in run("ng_list_agents").out
    assert "openai_model" in run("ng_list_models").out


def test_the_page_of_environments_is_current():
    document = (PARENT_DIR / "docs" / "catalogue.md").read_text("utf-8")
    assert document == pages.catalogue_page(), "run: python scripts/reference_pages.py"


def test_a_name_after_the_list_shows_one_entry(run):
    assert "Arithmetic" in run("ng", "list", "resources-servers", "calculator").out
    assert json.loads(run("ng", "list", "resources-servers", "calculator", "--json").out)[0]["name"] == "calculator"
    assert run("ng_list_resources_servers").out == run("ng_list_environments").out


def test_one_entry_is_shown_whole_and_a_misspelt_one_is_named(run):
    assert "resources_servers" in run("ng_list_environments", "+name=calculator").out
    ran = run("ng_list_environments", "+name=calculater")
    assert ran.code == 2
    assert "calculator" in ran.err


def test_a_word_finds_everything_that_it_leads_to(run):
    rows = json.loads(run("ng_search", "+query=calculator", "+json=true").out)
    assert {row["kind"] for row in rows} >= {"resources_servers"}
    assert run("ng", "search", "calculator", "--json").out == json.dumps(rows, indent=2) + "\n"
    assert run("ng_search").code == 2
