#!/usr/bin/env python3
"""Ends TLS and passes on what is inside, both ways: makes an http:// endpoint an https:// one.

python benchmarks_perf/tls_relay.py PORT HOST:PORT CERTIFICATE KEY
"""

import asyncio
import contextlib
import ssl
import sys

import uvloop

CHUNK = 2**16


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while part := await reader.read(CHUNK):
            writer.write(part)
            await writer.drain()
    writer.close()


async def main(port: int, upstream: str, certificate: str, key: str) -> None:
    host, _, upstream_port = upstream.partition(":")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(host, int(upstream_port))
        await asyncio.gather(pass_on(reader, inner_writer), pass_on(inner_reader, writer))

    server = await asyncio.start_server(relay, "127.0.0.1", port, ssl=context, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(main(int(sys.argv[1]), *sys.argv[2:5]))
