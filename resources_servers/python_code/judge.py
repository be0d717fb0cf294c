"""Judges a solution inside the sandbox: it runs in one process and is compared in another.

The two share nothing that the solution could use. It never sees the tests, because its process is forked before they
are read; it can't write the verdict, because only the judge has the standard output; and what it returns is made again
by the judge, from plain values. This module and those it imports run in the box and need the standard library only.
"""

import builtins
import json
import math
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from resources_servers.python_code.plain import Failed, receive_plain, send_anything
from resources_servers.python_code.solver import MAX_REASON, Channel, describe, hide_memory, start_solver

Verdict = dict[str, Any]
Request = Mapping[str, Any]
ROUNDING = 1e-9
EXACT = 2**53  # floats from here on are not exact


class UntestableError(BaseException):
    """The tests are at fault. Not an ``Exception``, so that no test catches it."""


def main() -> None:
    """Read a request from standard input, write a verdict to standard output."""
    # In this order: the solver is forked before the tests are read, and can't look into the judge afterwards.
    channel = start_solver()
    hide_memory()
    request = json.load(sys.stdin)
    judge = {"function": _judge_function, "cases": _judge_cases, "program": _judge_programs}[request["kind"]]
    try:
        verdict = judge(request, channel)
    except UntestableError as error:
        verdict = {"untestable": str(error)}
    sys.stdout.write(json.dumps(verdict))


def _judge_function(request: Request, channel: Channel) -> Verdict:
    """Let the tests' own ``check(candidate)`` call the solution."""
    names: dict[str, Any] = {"__name__": "tests"}
    try:
        for part in ("setup", "test"):
            exec(compile(request[part], f"{part}.py", "exec"), names)
        check = names["check"]
    except Exception as error:
        raise UntestableError(describe(error)) from error
    try:
        candidate = names[request["entry_point"]] = _load(request, channel)
        check(candidate)
    except Exception as error:
        return _verdict([_reason(error)])
    return _verdict([None])


def _judge_cases(request: Request, channel: Channel) -> Verdict:
    """Call the solution with each case's arguments."""
    try:
        candidate = _load(request, channel)
    except Exception as error:
        return _verdict([_reason(error)] * len(request["cases"]))
    return _verdict([_judge_case(candidate, case) for case in request["cases"]])


def _judge_case(candidate: Callable[..., Any], case: Request) -> str | None:
    try:
        value = candidate(*case["args"])
        if same_value(value, case["expected"]):
            return None
    except Exception as error:
        return _reason(error)
    arguments = ", ".join(map(_short, case["args"]))
    return f"({arguments}) gives {_short(value)}, not {_short(case['expected'])}"


def _judge_programs(request: Request, channel: Channel) -> Verdict:
    """Run the solution once for each case's input and compare what it prints."""
    reasons: list[str | None] = []
    for case in request["cases"]:
        try:
            code, output, errors = _ask(channel, "run", request["solution"], case["stdin"], request["case_s"])
        except Exception as error:
            reasons.append(_reason(error))
            continue
        if code is None:
            reasons.append("takes too long")
        elif code != 0:
            reasons.append(f"exit code {code}: {errors}".rstrip(": "))
        elif same_text(output, case["stdout"], request["tolerance"]):
            reasons.append(None)
        else:
            reasons.append(f"prints {_short(output)}, not {_short(case['stdout'])}")
    return _verdict(reasons)


def _verdict(reasons: Sequence[str | None]) -> Verdict:
    return {"passed": [reason is None for reason in reasons], "reason": next(filter(None, reasons), None)}


def _load(request: Request, channel: Channel) -> Callable[..., Any]:
    """Load the solution in its process; a function that calls it there."""
    _ask(channel, "load", request["solution"], request["entry_point"])

    def candidate(*args: Any, **kwargs: Any) -> Any:
        value, after = _ask(channel, "call", args, kwargs)
        for given, now in zip(args, after, strict=True):
            _put_back(given, now)
        return value

    candidate.__name__ = request["entry_point"]
    return candidate


def _put_back(given: Any, now: Any) -> None:
    """Copy changes of the arguments back, because some functions are tested by what they do to them."""
    if isinstance(given, list):
        given[:] = now
    elif isinstance(given, dict | set):
        given.clear()
        given.update(now)


def _ask(channel: Channel, *question: Any) -> Any:
    """Put a question to the solution's process. What it raises is raised here, if it is a built-in exception."""
    try:
        send_anything(channel.questions, question)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UntestableError(f"the tests call the solution with what can't be sent: {error}") from error
    except BrokenPipeError:
        raise Failed("ends the process") from None
    kind, *answer = receive_plain(channel.answers)
    if kind == "raised":
        name, text = map(str, answer)
        known = getattr(builtins, name, None)
        # UnicodeError's subclasses can't be made from one string.
        if isinstance(known, type) and issubclass(known, Exception) and not issubclass(known, UnicodeError):
            raise known(text)
        raise Failed(f"{name}: {text}")
    return answer


def _reason(error: Exception) -> str:
    return str(error)[:MAX_REASON] if isinstance(error, Failed) else describe(error)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


def same_value(value: Any, expected: Any) -> bool:
    """Equal as JSON: a tuple is a list, and floats may differ in the last digits."""
    if isinstance(value, list | tuple) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(same_value, value, expected))
    if isinstance(value, dict) and isinstance(expected, dict):
        plain = {str(key): item for key, item in value.items()}
        # 1 and "1" are different keys of a dictionary, and the same in JSON.
        return (
            len(plain) == len(value)
            and plain.keys() == expected.keys()
            and all(same_value(plain[key], expected[key]) for key in plain)
        )
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, float) or isinstance(expected, float):
        return isinstance(value, int | float) and isinstance(expected, int | float) and same_number(value, expected)
    return type(value) is type(expected) and bool(value == expected)


def same_number(value: float, expected: Any) -> bool:
    """Equal up to rounding. Of a whole number every digit counts: math.gamma(26) is not the factorial of 25."""
    if isinstance(expected, float):
        return is_close(value, expected, ROUNDING)
    return bool(value == expected or (abs(expected) < EXACT and abs(value - expected) <= ROUNDING))


def same_text(text: str, expected: str, tolerance: float | None) -> bool:
    """Equal line by line but for white space at the ends; numbers within the tolerance, if there is one."""
    lines, wanted = ([line.rstrip() for line in each.rstrip().splitlines()] for each in (text, expected))
    if lines == wanted or tolerance is None:
        return lines == wanted
    words, others = text.split(), expected.split()
    return len(words) == len(others) and all(
        a == b or _near(a, b, tolerance) for a, b in zip(words, others, strict=True)
    )


def _near(word: str, other: str, tolerance: float) -> bool:
    try:
        return is_close(float(word), float(other), tolerance)
    except ValueError:
        return False


def is_close(number: float, expected: float, tolerance: float) -> bool:
    """Whether a number is near the expected one, on the scale of which the difference is measured."""
    try:
        if math.isfinite(number) and math.isfinite(expected):
            return number == expected or abs(number - expected) <= tolerance * max(1.0, abs(expected))
    except OverflowError:  # an integer that is not a float
        return number == expected
    return number == expected or (math.isnan(number) and math.isnan(expected))
