"""Agent on the Python SDK of protocol 1.0, over every binding of 1.0 and 0.3: python agent.py [PORT]. Ends when its input is
closed.

The commands of a message are those of the demo agent of `a2a serve`, as far as agent_texts.py lists them.
"""

import asyncio
import sys

import grpc
import uvicorn
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc
from a2a.compat.v0_3.grpc_handler import CompatGrpcHandler
from a2a.helpers import new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2 as pb
from a2a.types import a2a_pb2_grpc
from starlette.applications import Starlette

from agent_texts import bound_socket, end_of_input, given_port, respond


class Executor(AgentExecutor):
    async def execute(self, context, event_queue):
        if context.get_user_input().startswith('/message '):
            text = context.get_user_input().removeprefix('/message ')
            await event_queue.enqueue_event(new_text_message(text, context_id=context.context_id))
            return
        if not context.current_task:
            await event_queue.enqueue_event(new_task_from_user_message(context.message))
        task = TaskUpdater(event_queue, context.task_id, context.context_id)
        await respond(context.get_user_input(), context.current_task is not None, Task(task))

    async def cancel(self, context, event_queue):
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


class Task:
    """Updates of a task, in the types of this SDK."""

    def __init__(self, task):
        self.task = task
        self.working = task.start_work
        self.complete = task.complete

    async def chunk(self, text, append, last):
        await self.task.add_artifact([new_text_part(text)], 'answer', 'answer', append=append, last_chunk=last)

    async def ask(self, question):
        await self.task.requires_input(self.task.new_agent_message([new_text_part(question)]))

    async def fail(self, reason):
        await self.task.failed(self.task.new_agent_message([new_text_part(reason)]))


async def main():
    http, grpc_server = bound_socket(given_port()), grpc.aio.server()
    url, port = f'http://127.0.0.1:{http.getsockname()[1]}', grpc_server.add_insecure_port('127.0.0.1:0')
    interfaces = [
        pb.AgentInterface(url=address, protocol_binding=binding, protocol_version=version)
        for version in ('1.0', '0.3')
        for binding, address in (('JSONRPC', f'{url}/rpc'), ('HTTP+JSON', url), ('GRPC', f'127.0.0.1:{port}'))
    ]
    card = pb.AgentCard(
        name='Python agent', description='Answers commands.', version='1', default_input_modes=['text/plain'],
        default_output_modes=['text/plain'], capabilities=pb.AgentCapabilities(streaming=True),
        skills=[pb.AgentSkill(id='echo', name='Echo', description='Returns the text.', tags=['echo'])],
        supported_interfaces=interfaces,
    )
    handler = DefaultRequestHandler(Executor(), InMemoryTaskStore(), card)
    a2a_pb2_grpc.add_A2AServiceServicer_to_server(GrpcHandler(handler), grpc_server)
    a2a_v0_3_pb2_grpc.add_A2AServiceServicer_to_server(CompatGrpcHandler(handler), grpc_server)
    await grpc_server.start()
    routes = create_agent_card_routes(card) + create_jsonrpc_routes(handler, '/rpc', enable_v0_3_compat=True)
    app = Starlette(routes=routes + create_rest_routes(handler, enable_v0_3_compat=True))
    server = uvicorn.Server(uvicorn.Config(app, log_level='error', timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve([http]))
    print(f'listening on {url}', flush=True)
    await end_of_input()
    server.should_exit = True
    await asyncio.gather(serving, grpc_server.stop(0))


asyncio.run(main())
sys.exit()
