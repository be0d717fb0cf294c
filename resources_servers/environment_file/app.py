"""Serves an environment that is a single Python file, named by the setting ``file``.

The file holds one ``nemo_gym.Environment``, or one server class. Because this folder is an ordinary server folder, such
a file can be hosted, isolated, replicated and run on a cluster like any other environment.
"""

from typing import Any

from nemo_gym.api.environment_file import ServerClass, load_server_class
from nemo_gym.base_resources_server import SimpleResourcesServer
from nemo_gym.errors import ConfigError


class EnvironmentFileServer(SimpleResourcesServer):
    """Stands for the server that the file describes."""

    @classmethod
    def named_by(cls, settings: dict[str, Any]) -> tuple[ServerClass, dict[str, Any]]:
        """The class of the file, and its settings: all keys but ``file``."""
        if not settings.get("file"):
            raise ConfigError(
                f"{settings.get('name')}: the setting file is missing",
                hint="write file: <path of the Python file that defines the environment>",
            )
        own = {name: value for name, value in settings.items() if name != "file"}
        return load_server_class(settings["file"]), own


if __name__ == "__main__":
    EnvironmentFileServer.run_webserver()
