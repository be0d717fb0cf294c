"""From a server object to the app that is served: the author's app plus what every server has."""

import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.exception_handlers import request_validation_exception_handler
from fastapi.exceptions import RequestValidationError
from starlette.responses import Response

logger = logging.getLogger(__name__)


def build_app(server: Any, *, folder: Path | None = None) -> FastAPI:
    """The author's app with liveness, faults as answers, and refused bodies logged.

    Relative paths that an author opens while the app is built are meant relative to the server's folder.
    """
    with contextlib.chdir(folder) if folder else contextlib.nullcontext():
        app = cast("FastAPI", server.setup_webserver())
    server.setup_liveness(app)
    server.setup_exception_middleware(app)
    if app.exception_handlers.get(RequestValidationError) is request_validation_exception_handler:
        app.add_exception_handler(RequestValidationError, _refusal_logger(server.get_session_middleware_key()))
    return app


def _refusal_logger(label: str) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        reasons = [f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}" for entry in error.errors()]
        logger.warning("%s: %s refused a body: %s", label, request.url.path, "; ".join(reasons))
        return await request_validation_exception_handler(request, error)

    return refuse
