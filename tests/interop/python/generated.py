"""gRPC with code that the stock generator makes of proto/, and no SDK: python generated.py URL"""

import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import grpc
import harness
from google.rpc import error_details_pb2, status_pb2

PROTO = Path(__file__).parents[3] / 'proto'
files = [str(it.relative_to(PROTO)) for it in PROTO.rglob('*.proto')]
with tempfile.TemporaryDirectory() as out:
    to = [f'-I{PROTO}', f'--python_out={out}', f'--grpc_python_out={out}']
    subprocess.run([sys.executable, '-m', 'grpc_tools.protoc', *to, *files], check=True)
    sys.path.insert(0, out)
    from lf.a2a.v1 import a2a_pb2, a2a_pb2_grpc

ADDRESS = sys.argv[1].removeprefix('http://')
VERSION = [('a2a-version', '1.0')]


def request(text):
    message = a2a_pb2.Message(message_id='m', role=a2a_pb2.ROLE_USER, parts=[a2a_pb2.Part(text=text)])
    return a2a_pb2.SendMessageRequest(message=message)


async def main():
    async with grpc.aio.insecure_channel(ADDRESS) as channel:
        stub = a2a_pb2_grpc.A2AServiceStub(channel)

        async def unary():
            task = (await stub.SendMessage(request('hello'), metadata=VERSION, timeout=10)).task
            assert task.status.state == a2a_pb2.TASK_STATE_COMPLETED, task
            assert task.artifacts[0].parts[0].text == 'hello', task

        async def stream():
            events = [it async for it in stub.SendStreamingMessage(request('/stream 3 1'), metadata=VERSION, timeout=10)]
            updates = [event.artifact_update for event in events if event.HasField('artifact_update')]
            # The server may join chunks, so an update may have several parts.
            chunks = [part.text for update in updates for part in update.artifact.parts]
            assert ''.join(chunks) == 'chunk 1 of 3\nchunk 2 of 3\nchunk 3 of 3\n', events
            assert events[-1].status_update.status.state == a2a_pb2.TASK_STATE_COMPLETED, events

        async def error_details():
            try:
                await stub.GetTask(a2a_pb2.GetTaskRequest(id='nobody'), metadata=VERSION, timeout=10)
            except grpc.aio.AioRpcError as error:
                assert error.code() == grpc.StatusCode.NOT_FOUND, error
                details = dict(error.trailing_metadata())['grpc-status-details-bin']
            status = status_pb2.Status.FromString(details)
            assert status.code == grpc.StatusCode.NOT_FOUND.value[0] and status.message, status
            info = error_details_pb2.ErrorInfo()
            assert any(it.Unpack(info) for it in status.details), status
            assert (info.reason, info.domain) == ('TASK_NOT_FOUND', 'a2a-protocol.org'), info

        for test in [unary, stream, error_details]:
            await harness.check(f'grpcio-tools {version("grpcio-tools")} {test.__name__}', test)


harness.run(main)
