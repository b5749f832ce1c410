#!/bin/sh
# Agent without code: `a2a serve --exec examples/agent.sh`. Reads the message from stdin, and writes the answer to stdout.
while read -r line || [ -n "$line" ]; do
    echo "You said: $line"
done
