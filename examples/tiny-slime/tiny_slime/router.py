"""The router in front of the engines: it only takes its port, and says so."""

import argparse
import asyncio


async def serve(host, port):
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), host, port)
    print(f"router on port {port}", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="tiny_slime.router")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    args = parser.parse_args()
    asyncio.run(serve(args.host, args.port))
