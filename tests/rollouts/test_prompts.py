import pytest

from nemo_gym.rollouts.prompts import MissingFieldError, PromptConfig, PromptError, has_input, render, with_prompt


def user(template: str, row: dict) -> str:
    return render(PromptConfig(user=template), row)[-1]["content"]


def test_fields_are_inserted_and_never_read_as_templates() -> None:
    assert (
        user("{q} {d[key]} {l[0]} {x:.1f} {{}}", {"q": "{d}", "d": {"key": "v"}, "l": [1], "x": 2.55})
        == "{d} v 1 2.5 {}"
    )


def test_the_system_message_comes_first_if_there_is_one() -> None:
    assert [m["role"] for m in render(PromptConfig(user="u", system="s"), {})] == ["system", "user"]
    assert [m["role"] for m in render(PromptConfig(user="u"), {})] == ["user"]


def test_an_unknown_field_is_named_beside_those_there_are() -> None:
    with pytest.raises(MissingFieldError, match=r"'nope'.*\['a', 'b'\]"):
        user("{nope}", {"b": 1, "a": 2})


@pytest.mark.parametrize("template", ["{", "{}", "{0}", "{q!z}", "{l[9]}", "{q.missing}", "{l:.2f}"])
def test_a_template_that_cannot_be_filled_is_an_error_of_the_user(template: str) -> None:
    with pytest.raises(PromptError):
        user(template, {"q": "x", "l": [1]})


def test_other_parameters_are_kept_and_the_row_is_not_changed() -> None:
    row = {"responses_create_params": {"temperature": 1.0, "input": ""}, "x": 1}
    filled = with_prompt(row, [{"role": "user", "content": "hi"}])
    assert filled["responses_create_params"] == {"temperature": 1.0, "input": [{"role": "user", "content": "hi"}]}
    assert row["responses_create_params"]["input"] == ""
    assert with_prompt({"responses_create_params": None}, [])["responses_create_params"] == {"input": []}


def test_only_a_real_input_is_in_the_way() -> None:
    assert has_input({"responses_create_params": {"input": "x"}})
    for params in ({"input": ""}, {"input": []}, {"input": None}, {}, None):
        assert not has_input({"responses_create_params": params})
