// Agent on the JavaScript SDK of protocol 1.0, over each binding at 1.0 and 0.3: node agent.mjs. Ends when its input is closed.
import { randomUUID } from 'node:crypto';
import { Server, ServerCredentials } from '@grpc/grpc-js';
import { AgentCard, Message, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent } from '@a2a-js/sdk';
import { LegacyA2AService, legacyGrpcService } from '@a2a-js/sdk/compat/v0_3/server/grpc';
import { AgentEvent, DefaultRequestHandler, InMemoryTaskStore } from '@a2a-js/sdk/server';
import { UserBuilder, agentCardHandler, jsonRpcHandler, restHandler } from '@a2a-js/sdk/server/express';
import { A2AService, grpcService } from '@a2a-js/sdk/server/grpc';
import express from 'express';
import { canceled, listen, respond, serving } from './commands.mjs';

const executor = {
  async execute({ taskId, contextId, userMessage, task }, bus) {
    const message = (text) => ({ messageId: randomUUID(), role: 'ROLE_AGENT', contextId, parts: [{ text }] });
    const state = (name) => `TASK_STATE_${name.replace('-', '_').toUpperCase()}`;
    await respond(userMessage.parts[0].content.value, Boolean(task), {
      id: taskId,
      reply: (text) => bus.publish(AgentEvent.message(Message.fromJSON(message(text)))),
      open() {
        const opened = Task.fromJSON({ id: taskId, contextId, status: { state: 'TASK_STATE_SUBMITTED' } });
        bus.publish(AgentEvent.task(task ?? { ...opened, history: [userMessage] }));
      },
      status(name, text) {
        const status = { state: state(name), message: text ? { ...message(text), taskId } : undefined };
        const update = { taskId, contextId, status: { ...status, timestamp: new Date().toISOString() } };
        bus.publish(AgentEvent.statusUpdate(TaskStatusUpdateEvent.fromJSON(update)));
      },
      chunk(text, append, lastChunk) {
        const artifact = { artifactId: 'answer', name: 'answer', parts: [{ text }] };
        const update = TaskArtifactUpdateEvent.fromJSON({ taskId, contextId, artifact, append, lastChunk });
        bus.publish(AgentEvent.artifactUpdate(update));
      },
    });
    bus.finished();
  },
  async cancelTask(taskId) {
    canceled.add(taskId);
  },
};

const app = express();
const port = await listen(app);
const server = new Server();
const grpcPort = await new Promise((resolve, reject) => {
  server.bindAsync('127.0.0.1:0', ServerCredentials.createInsecure(), (error, bound) => (error ? reject(error) : resolve(bound)));
});
const url = `http://127.0.0.1:${port}`;
const addresses = { JSONRPC: `${url}/rpc`, 'HTTP+JSON': url, GRPC: `127.0.0.1:${grpcPort}` };
const card = AgentCard.fromJSON({
  name: 'JavaScript agent',
  description: 'Answers commands.',
  version: '1',
  capabilities: { streaming: true },
  defaultInputModes: ['text/plain'],
  defaultOutputModes: ['text/plain'],
  skills: [{ id: 'echo', name: 'Echo', description: 'Returns the text.', tags: ['echo'] }],
  supportedInterfaces: ['1.0', '0.3'].flatMap((protocolVersion) => Object.entries(addresses).map(
    ([protocolBinding, address]) => ({ url: address, protocolBinding, protocolVersion }),
  )),
});
const requestHandler = new DefaultRequestHandler(card, new InMemoryTaskStore(), executor);
const options = { requestHandler, userBuilder: UserBuilder.noAuthentication, legacyCompat: { enabled: true } };
app.use('/.well-known/agent-card.json', agentCardHandler({ agentCardProvider: requestHandler, legacyCompat: { enabled: true } }));
app.use('/rpc', jsonRpcHandler(options));
app.use('/', restHandler(options));
server.addService(A2AService, grpcService(options));
server.addService(LegacyA2AService, legacyGrpcService(options));
serving(url);
