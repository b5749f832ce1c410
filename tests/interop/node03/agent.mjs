// Agent on the JavaScript SDK of protocol 0.3, over each binding: node agent.mjs. Ends when its input is closed.
import { randomUUID } from 'node:crypto';
import { Server, ServerCredentials } from '@grpc/grpc-js';
import { DefaultRequestHandler, InMemoryTaskStore } from '@a2a-js/sdk/server';
import { UserBuilder, agentCardHandler, jsonRpcHandler, restHandler } from '@a2a-js/sdk/server/express';
import { A2AService, grpcService } from '@a2a-js/sdk/server/grpc';
import express from 'express';
import { canceled, listen, respond, serving } from './commands.mjs';

const executor = {
  async execute({ taskId, contextId, userMessage, task }, bus) {
    const message = (text) => ({
      kind: 'message', messageId: randomUUID(), role: 'agent', contextId, parts: [{ kind: 'text', text }],
    });
    const isLast = (state) => state !== 'working';
    await respond(userMessage.parts[0].text, Boolean(task), {
      id: taskId,
      reply: (text) => bus.publish(message(text)),
      open() {
        if (!task) bus.publish({ kind: 'task', id: taskId, contextId, status: { state: 'submitted' }, history: [userMessage] });
      },
      status(state, text) {
        const status = { state, timestamp: new Date().toISOString() };
        if (text) status.message = { ...message(text), taskId };
        bus.publish({ kind: 'status-update', taskId, contextId, status, final: isLast(state) });
      },
      chunk(text, append, lastChunk) {
        const artifact = { artifactId: 'answer', name: 'answer', parts: [{ kind: 'text', text }] };
        bus.publish({ kind: 'artifact-update', taskId, contextId, artifact, append, lastChunk });
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
const card = {
  name: 'JavaScript agent',
  description: 'Answers commands.',
  protocolVersion: '0.3.0',
  version: '1',
  url: `${url}/rpc`,
  preferredTransport: 'JSONRPC',
  capabilities: { streaming: true },
  defaultInputModes: ['text/plain'],
  defaultOutputModes: ['text/plain'],
  skills: [{ id: 'echo', name: 'Echo', description: 'Returns the text.', tags: ['echo'] }],
  additionalInterfaces: [
    { url: `${url}/rpc`, transport: 'JSONRPC' },
    { url: `${url}/rest`, transport: 'HTTP+JSON' },
    { url: `127.0.0.1:${grpcPort}`, transport: 'GRPC' },
  ],
};
const requestHandler = new DefaultRequestHandler(card, new InMemoryTaskStore(), executor);
const options = { requestHandler, userBuilder: UserBuilder.noAuthentication };
app.use('/.well-known/agent-card.json', agentCardHandler({ agentCardProvider: requestHandler }));
app.use('/rpc', jsonRpcHandler(options));
app.use('/rest', restHandler(options));
server.addService(A2AService, grpcService(options));
serving(url);
