"""What a row expects, in whichever form it is written, as one type.

A call may be written as ``{"name": …, "arguments": …}`` with an object or its JSON text, as
``{"<name>": {"<argument>": [accepted values]}}``, or as Python text, ``cd(folder='temp')``. Names with
dots are compared as endpoints want them, with underscores.
"""

import ast
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from resources_servers.function_calls.calls import Call, ExpectedCall

Tools: TypeAlias = Mapping[str, Mapping[str, Any]]  # the parameters of each tool, as JSON Schema


def tool_name(name: str) -> str:
    """The name as an endpoint accepts it."""
    return name.replace(".", "_")


def parameters_of(tools: Sequence[Mapping[str, Any]]) -> Tools:
    """The parameters of each function among the tools."""
    return {tool_name(tool["name"]): tool.get("parameters") or {} for tool in tools if tool.get("type") == "function"}


def expected_call(written: Any, tools: Tools) -> ExpectedCall:
    """Read one expected call; raises ValueError if it is not one."""
    if isinstance(written, str):
        call = python_call(written, tools)
        return _exact(call.name, call.arguments or {}, tools)
    if not isinstance(written, dict):
        raise ValueError(f"not a call: {written!r}")  # noqa: TRY004 - of data
    if written.keys() >= {"name", "arguments"}:
        arguments = written["arguments"]
        arguments = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
        if not isinstance(arguments, dict):
            raise ValueError(f"the arguments of {written['name']} are not an object")
        return _exact(tool_name(written["name"]), arguments, tools)
    if len(written) != 1:
        raise ValueError(f"a call has one name, not {len(written)}: {', '.join(written)}")
    ((name, accepted),) = written.items()
    if not isinstance(accepted, dict) or not all(isinstance(values, list) for values in accepted.values()):
        raise ValueError(f"{name}: each argument needs a list of accepted values")
    # A list without alternatives accepts the empty list itself.
    alternatives = {argument: values or [[]] for argument, values in accepted.items()}
    return ExpectedCall(tool_name(name), alternatives, exact=False, parameters=_parameters(name, tools))


def plain_call(expected: ExpectedCall) -> Call:
    """The call that satisfies the expectation with the first alternative of everything."""
    if expected.exact:
        return Call(expected.name, {name: values[0] for name, values in expected.accepted.items()})
    needed = {name: values for name, values in expected.accepted.items() if not expected.may_be_left_out(name)}
    chosen = {name: next((each for each in values if each != ""), values[0]) for name, values in needed.items()}
    return Call(expected.name, {name: _first(value) for name, value in chosen.items()})


def python_call(text: str, tools: Tools) -> Call:
    """Read ``name(1, key=[2])``; arguments without a name get those of the tool's parameters, in order."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if not isinstance(node, ast.Call):
            raise ValueError(f"not a call: {text!r}")  # noqa: TRY004 - of data
        name = tool_name(ast.unparse(node.func))
        values = [ast.literal_eval(argument) for argument in node.args]
        named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
    except SyntaxError as error:
        raise ValueError(f"not a call: {text!r}") from error
    positions = list(
        tools.get(name, {}).get("properties") or {}
    )  # JSON keeps the order in which parameters are declared
    if len(values) > len(positions):
        raise ValueError(f"{text!r} has more arguments than {name} has parameters")
    return Call(name, _as_json(dict(zip(positions, values, strict=False)) | named))


def _exact(name: str, arguments: Mapping[str, Any], tools: Tools) -> ExpectedCall:
    accepted = {argument: [value] for argument, value in arguments.items()}
    return ExpectedCall(name, accepted, exact=True, parameters=_parameters(name, tools))


def _parameters(name: str, tools: Tools) -> Mapping[str, Any]:
    return tools.get(tool_name(name), {})


def _first(value: Any) -> Any:
    if isinstance(value, dict):
        alternatives = {key: values if isinstance(values, list) else [values] for key, values in value.items()}
        return {key: _first(values[0]) for key, values in alternatives.items() if "" not in values}
    return [_first(each) for each in value] if isinstance(value, list) else value


def _as_json(arguments: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(arguments))  # tuples become lists
    return found
