"""Files, each with a path and its text. ``state["files"]`` lists them."""

from typing import Any

from resources_servers.office.toolkit import MAX_ITEMS, State, ToolError, contains, find, listed, same_text, tool


@tool("Lists the files of a folder, or all.")
def files_list(state: State, folder: str | None = None) -> dict[str, Any]:  # noqa: D103
    start = "" if folder is None else _clean(folder) + "/"
    return listed([{"path": file["path"]} for file in state["files"] if file["path"].startswith(start)])


@tool("Finds files whose path or text contains something.")
def files_search(state: State, text: str) -> dict[str, Any]:  # noqa: D103
    return listed([{"path": file["path"]} for file in state["files"] if contains(file, text)])


@tool("Shows the text of a file.")
def files_read(state: State, path: str) -> dict[str, Any]:  # noqa: D103
    return find(state["files"], "path", _clean(path))


@tool("Writes a file; one that is there is replaced.")
def files_write(state: State, path: str, text: str) -> dict[str, Any]:  # noqa: D103
    clean = _clean(path)
    for file in state["files"]:
        if same_text(file["path"], clean):
            file["text"] = text
            return {"replaced": file["path"]}
    if len(state["files"]) >= MAX_ITEMS:
        raise ToolError(f"there are {MAX_ITEMS} already")
    state["files"].append({"path": clean, "text": text})
    return {"written": clean}


@tool("Moves or renames a file. The new path includes the file's name.")
def files_move(state: State, path: str, new_path: str) -> dict[str, Any]:  # noqa: D103
    file, clean = find(state["files"], "path", _clean(path)), _clean(new_path)
    if any(same_text(other["path"], clean) for other in state["files"]):
        raise ToolError(f"{clean[:60]!r} is there already")
    file["path"] = clean
    return {"moved": clean}


@tool("Deletes a file.")
def files_delete(state: State, path: str) -> dict[str, Any]:  # noqa: D103
    file = find(state["files"], "path", _clean(path))
    state["files"].remove(file)
    return {"deleted": file["path"]}


def _clean(path: str) -> str:
    parts = [part for part in path.strip().split("/") if part not in {"", "."}]
    if not parts or ".." in parts:
        raise ToolError(f"{path[:60]!r} is not a path")
    return "/".join(parts)
