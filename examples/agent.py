#!/usr/bin/env python3
"""A2A agent: asks a question, streams its answer, and sends a file.

Start it with: a2a serve --exec ./agent.py --exec-format json-lines
Talk to it with: a2a chat 127.0.0.1:8080
"""

import json
import os
import sys
import time


def send(type, **members):
    print(json.dumps({"type": type, **members}), flush=True)


# A process for each message: a line with the message and the state of its task.
turn = json.loads(sys.stdin.readline())
text = turn["text"]

if "state" not in turn:
    # The first message of a task. The state reaches the next turn.
    send("save", state={"topic": text})
    send("ask", message="How many lines?")
elif not text.strip().isdecimal():
    send("ask", message="Please send a number.")
else:
    lines = [f"{number}. {turn['state']['topic']}\n" for number in range(1, min(int(text), 20) + 1)]
    for line in lines:
        # Chunks with the same name are one artifact.
        send("artifact", name="answer", text=line)
        time.sleep(0.2)
    # Files in this directory become artifacts.
    with open(os.path.join(turn["outputDir"], "answer.txt"), "w") as file:
        file.writelines(lines)
    send("complete", message="Done.")
