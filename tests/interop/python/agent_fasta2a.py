"""Agent on FastA2A, which has JSON-RPC of 1.0: python agent_fasta2a.py [PORT]. Ends when its input is closed.

Each message is a task, whose artifact has the text of the message. The worker writes the artifact only to the storage, so that streams
end without it.
"""

import asyncio
import sys
from contextlib import asynccontextmanager

import uvicorn
from fasta2a import FastA2A, Skill, Worker
from fasta2a.broker import InMemoryBroker
from fasta2a.storage import InMemoryStorage

from agent_texts import bound_socket, end_of_input, given_port


class Echo(Worker):
    async def run_task(self, params):
        await self.storage.update_task(params['id'], state='working')
        text = ''.join(part.get('text', '') for part in params['message']['parts'])
        await self.storage.update_task(params['id'], state='completed', new_artifacts=self.build_artifacts(text))

    async def cancel_task(self, params):
        await self.storage.update_task(params['id'], state='canceled')

    def build_message_history(self, history):
        return history

    def build_artifacts(self, result):
        return [{'artifact_id': 'answer', 'name': 'answer', 'parts': [{'text': result}]}]


async def main():
    http, broker, storage = bound_socket(given_port()), InMemoryBroker(), InMemoryStorage()
    url, worker = f'http://127.0.0.1:{http.getsockname()[1]}', Echo(broker=broker, storage=storage)

    @asynccontextmanager
    async def lifespan(app):
        async with app.task_manager, worker.run():
            yield

    skill = Skill(
        id='echo', name='Echo', description='Returns the text.', tags=['echo'], input_modes=['text/plain'],
        output_modes=['text/plain'],
    )
    app = FastA2A(storage=storage, broker=broker, name='FastA2A agent', url=url, skills=[skill], lifespan=lifespan)
    server = uvicorn.Server(uvicorn.Config(app, log_level='error', timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve([http]))
    print(f'listening on {url}', flush=True)
    await end_of_input()
    server.should_exit = True
    await serving


asyncio.run(main())
sys.exit()
