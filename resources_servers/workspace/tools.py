"""The tools of an agent in its world: a shell, and files that are read, written, edited, listed and searched."""

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from nemo_gym.sandbox import ProgramEnding, World, WorldFileError

MOST_FILE: Final = 1 << 20
_ENDINGS: Final = {
    ProgramEnding.WALL_TIME: "the command took too long and was ended",
    ProgramEnding.CPU_TIME: "the command used too much CPU time and was ended",
    ProgramEnding.MEMORY: "there was not enough memory, so all commands were ended",
    ProgramEnding.DISK: "there was not enough space for files, so all commands were ended",
    ProgramEnding.OUTPUT: "the command wrote too much and was ended",
}


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class RunArguments(_Arguments):
    """Runs a command in the shell. The working directory and exported variables are kept for the next command."""

    command: str
    timeout_s: float | None = Field(default=None, gt=0, description="Seconds after which the command is ended.")


class ReadFileArguments(_Arguments):
    """Reads a text file, or some of its lines."""

    path: str
    first_line: int = Field(default=1, ge=1)
    last_line: int | None = Field(default=None, ge=1)


class WriteFileArguments(_Arguments):
    """Writes a text file. Its folders are made."""

    path: str
    content: str


class EditFileArguments(_Arguments):
    """Replaces a part of a text file. The old text must occur exactly once."""

    path: str
    old_text: str = Field(min_length=1)
    new_text: str


class ListFilesArguments(_Arguments):
    """Lists the files below a folder."""

    path: str = "."


class SearchArguments(_Arguments):
    """Finds lines that match an extended regular expression, in all files below a folder."""

    pattern: str
    path: str = "."


ARGUMENTS: Final[dict[str, type[_Arguments]]] = {
    "run": RunArguments,
    "read_file": ReadFileArguments,
    "write_file": WriteFileArguments,
    "edit_file": EditFileArguments,
    "list_files": ListFilesArguments,
    "search": SearchArguments,
}
Answer = dict[str, Any]


def declarations() -> list[dict[str, Any]]:
    """The tools as the rows of a dataset list them."""
    return [_declare(name, arguments) for name, arguments in ARGUMENTS.items()]


def _declare(name: str, arguments: type[_Arguments]) -> dict[str, Any]:
    schema = arguments.model_json_schema()
    properties = {
        key: {part: value for part, value in field.items() if part not in ("title", "default")}
        for key, field in schema["properties"].items()
    }
    parameters = {
        "type": "object",
        "properties": properties,
        "required": schema.get("required", []),
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "name": name,
        "description": schema["description"],
        "parameters": parameters,
        "strict": False,
    }


class Toolbox:
    """The tools, on one world. What can't be done is an answer with ``error``, for the agent to read."""

    def __init__(self, world: World, *, command_s: float, most_output: int) -> None:
        self._world = world
        self._command_s = command_s
        self._most = most_output

    async def run(self, asked: RunArguments) -> Answer:
        """Standard output and error in the order in which they were written."""
        written = bytearray()
        result = await self._world.exec(
            asked.command,
            timeout_s=min(asked.timeout_s or self._command_s, self._command_s),
            on_output=lambda _, data: written.extend(data),
        )
        answer: Answer = {"output": self._shorten(written.decode("utf-8", "replace")), "exit_code": result.exit_code}
        if result.ending in _ENDINGS:
            answer["error"] = _ENDINGS[result.ending]
        return answer

    async def read_file(self, asked: ReadFileArguments) -> Answer:
        text = await self._text(asked.path)
        lines = text.splitlines(keepends=True)
        chosen = "".join(lines[asked.first_line - 1 : asked.last_line])
        return {"content": self._shorten(chosen), "lines": len(lines)}

    async def write_file(self, asked: WriteFileArguments) -> Answer:
        await self._world.write(asked.path, asked.content.encode("utf-8", "surrogateescape"))
        return {"written": asked.path}

    async def edit_file(self, asked: EditFileArguments) -> Answer:
        text = await self._text(asked.path)
        if (count := text.count(asked.old_text)) != 1:
            return {"error": f"old_text occurs {count} times in {asked.path}, not once"}
        changed = text.replace(asked.old_text, asked.new_text)
        mode = await self._world.exec(["stat", "-c", "%a", "--", asked.path])
        known = int(mode.text, 8) & 0o777 if mode.ok else 0o644
        await self._world.write(asked.path, changed.encode("utf-8", "surrogateescape"), mode=known)
        return {"edited": asked.path}

    async def list_files(self, asked: ListFilesArguments) -> Answer:
        return await self._look(["find", "--", asked.path, "-not", "-path", "*/.git/*", "-not", "-type", "d"])

    async def search(self, asked: SearchArguments) -> Answer:
        return await self._look(["grep", "-rnIE", "-e", asked.pattern, "--", asked.path], nothing_found=1)

    async def _look(self, command: list[str], *, nothing_found: int = 0) -> Answer:
        result = await self._world.exec(command, timeout_s=self._command_s)
        if not result.ok and (result.exit_code != nothing_found or result.stderr):
            return {"error": result.stderr.decode("utf-8", "replace")[:1000] or _ENDINGS.get(result.ending, "failed")}
        lines = sorted(line.removeprefix("./") for line in result.text.splitlines())
        return {"lines": self._shorten("\n".join(lines))}

    async def _text(self, path: str) -> str:
        return (await self._world.read(path, most=MOST_FILE)).decode("utf-8", "surrogateescape")

    def _shorten(self, text: str) -> str:
        text = text.encode("utf-8", "replace").decode("utf-8")
        if len(text) <= self._most:
            return text
        half = self._most // 2
        return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{text[-half:]}"


async def use_tool(toolbox: Toolbox, name: str, arguments: BaseModel) -> Answer:
    """What a tool answers; a file that can't be read or written is the agent's affair."""
    try:
        answer: Answer = await getattr(toolbox, name)(arguments)
    except (FileNotFoundError, WorldFileError, ValueError) as error:
        return {"error": str(error)}
    return answer
