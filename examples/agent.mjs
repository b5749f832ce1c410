#!/usr/bin/env node
// A2A agent: asks a question, streams its answer, and sends a file.
//
// Start it with: a2a serve --exec ./agent.mjs --exec-format json-lines
// Talk to it with: a2a chat 127.0.0.1:8080

import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout } from 'node:timers/promises'

const send = (type, members) => console.log(JSON.stringify({ type, ...members }))

// A process for each message: a line with the message and the state of its task.
createInterface({ input: process.stdin }).once('line', async line => {
    const turn = JSON.parse(line)
    if (!turn.state) {
        // The first message of a task. The state reaches the next turn.
        send('save', { state: { topic: turn.text } })
        send('ask', { message: 'How many lines?' })
    } else if (!/^\s*\d+\s*$/.test(turn.text)) {
        send('ask', { message: 'Please send a number.' })
    } else {
        let text = ''
        for (let number = 1; number <= Math.min(turn.text, 20); number++) {
            const chunk = `${number}. ${turn.state.topic}\n`
            // Chunks with the same name are one artifact.
            send('artifact', { name: 'answer', text: chunk })
            text += chunk
            await setTimeout(200)
        }
        // Files in this directory become artifacts.
        writeFileSync(join(turn.outputDir, 'answer.txt'), text)
        send('complete', { message: 'Done.' })
    }
    process.exit()
})
