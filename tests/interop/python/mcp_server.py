"""MCP server on the Python SDK: python mcp_server.py, or over streamable HTTP: python mcp_server.py PORT."""

import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer('math')


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    if b < 0:
        raise ValueError('no negative numbers')
    return a + b


if len(sys.argv) > 1:
    server.run('streamable-http', host='127.0.0.1', port=int(sys.argv[1]))
else:
    server.run()
