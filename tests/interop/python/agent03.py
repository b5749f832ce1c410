"""Agent on the Python SDK of protocol 0.3, over every binding: python agent03.py [PORT]. Ends when its input is closed.

The commands of a message are in agent_texts.py.
"""

import asyncio
import sys

import grpc
import uvicorn
from a2a.grpc import a2a_pb2_grpc
from a2a.server.agent_execution import AgentExecutor
from a2a.server.apps import A2ARESTFastAPIApplication, A2AStarletteApplication
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part, TextPart
from a2a.utils import new_agent_text_message, new_task

from agent_texts import bound_socket, end_of_input, given_port, respond


class Executor(AgentExecutor):
    async def execute(self, context, event_queue):
        if context.get_user_input().startswith('/message '):
            text = context.get_user_input().removeprefix('/message ')
            await event_queue.enqueue_event(new_agent_text_message(text, context.context_id))
            return
        if not context.current_task:
            await event_queue.enqueue_event(new_task(context.message))
        task = TaskUpdater(event_queue, context.task_id, context.context_id)
        await respond(context.get_user_input(), context.current_task is not None, Task(task))

    async def cancel(self, context, event_queue):
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def text_part(text):
    return Part(root=TextPart(text=text))


class Task:
    """Updates of a task, in the types of this SDK."""

    def __init__(self, task):
        self.task = task
        self.working = task.start_work
        self.complete = task.complete

    async def chunk(self, text, append, last):
        await self.task.add_artifact([text_part(text)], 'answer', 'answer', append=append, last_chunk=last)

    async def ask(self, question):
        await self.task.requires_input(self.task.new_agent_message([text_part(question)]), final=True)

    async def fail(self, reason):
        await self.task.failed(self.task.new_agent_message([text_part(reason)]))


async def main():
    rpc, rest, grpc_server = bound_socket(given_port()), bound_socket(), grpc.aio.server()
    rpc_url, rest_url = (f'http://127.0.0.1:{bound.getsockname()[1]}' for bound in (rpc, rest))
    port = grpc_server.add_insecure_port('127.0.0.1:0')
    card = AgentCard(
        name='Python agent', description='Answers commands.', version='1', url=rpc_url, preferred_transport='JSONRPC',
        default_input_modes=['text/plain'], default_output_modes=['text/plain'],
        capabilities=AgentCapabilities(streaming=True),
        skills=[AgentSkill(id='echo', name='Echo', description='Returns the text.', tags=['echo'])],
        additional_interfaces=[
            AgentInterface(url=rest_url, transport='HTTP+JSON'),
            AgentInterface(url=f'127.0.0.1:{port}', transport='GRPC'),
        ],
    )
    handler = DefaultRequestHandler(Executor(), InMemoryTaskStore())
    a2a_pb2_grpc.add_A2AServiceServicer_to_server(GrpcHandler(card, handler), grpc_server)
    await grpc_server.start()
    apps = [(rpc, A2AStarletteApplication(card, handler).build()), (rest, A2ARESTFastAPIApplication(card, handler).build())]
    servers = [(bound, uvicorn.Server(uvicorn.Config(app, log_level='error', timeout_graceful_shutdown=1))) for bound, app in apps]
    serving = [asyncio.create_task(server.serve([bound])) for bound, server in servers]
    print(f'listening on {rpc_url}', flush=True)
    await end_of_input()
    for _, server in servers:
        server.should_exit = True
    await asyncio.gather(*serving, grpc_server.stop(0))


asyncio.run(main())
sys.exit()
