"""ASGI by hand: calling a whole app without a socket, and reading a request without a framework."""

from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope


@dataclass(slots=True)
class AsgiAnswer:
    """What an app sent, collected."""

    status: int = 500
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    chunks: list[bytes] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        """The whole body."""
        return b"".join(self.chunks)

    async def send(self, message: Message) -> None:
        """The ASGI ``send`` of this answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = list(message.get("headers", ()))
        elif message["type"] == "http.response.body":
            self.chunks.append(message.get("body", b""))


async def call_asgi(app: ASGIApp, scope: Scope, body: bytes) -> AsgiAnswer:
    """Run one request through an app."""
    answer = AsgiAnswer()
    await app(scope, replay(body), answer.send)
    return answer


def replay(body: bytes) -> Receive:
    """An ASGI ``receive`` for a body that has already been read."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    return receive


async def read_all(receive: Receive) -> bytes:
    """The whole body of a request."""
    message = await receive()
    if not message.get("more_body", False):
        return bytes(message.get("body", b""))
    chunks = [message["body"]]
    while message.get("more_body", False):
        message = await receive()
        chunks.append(message.get("body", b""))
    return b"".join(chunks)


def is_json(scope: Scope) -> bool:
    """True if the request says that its body is JSON."""
    return any(name == b"content-type" and value.startswith(b"application/json") for name, value in scope["headers"])
