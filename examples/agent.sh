#!/bin/sh
# A2A agent: asks a question, streams its answer, and sends a file.
#
# Start it with: a2a serve --exec ./agent.sh --exec-format json-lines
# Talk to it with: a2a chat 127.0.0.1:8080

# A process for each message: a line with the message and the state of its task.
read -r turn

# Prints the text after a beginning, still with the escapes of JSON, so that it can be sent again as it is.
text_after() { printf '%s\n' "$turn" | sed 's/^.*'"$1"'"\([^"\\]*\(\\.[^"\\]*\)*\)".*$/\1/'; }
text=$(text_after '"hops":[0-9]*,"text":')

case $turn in
*'"state":{"topic":'*) topic=$(text_after '"state":{"topic":') ;;
*)
    # The first message of a task. The state reaches the next turn.
    printf '{"type":"save","state":{"topic":"%s"}}\n' "$text"
    echo '{"type":"ask","message":"How many lines?"}'
    exit
    ;;
esac
case $text in
'' | *[!0-9]*) echo '{"type":"ask","message":"Please send a number."}' && exit ;;
esac
for number in $(seq "$text" | head -n 20); do
    # Chunks with the same name are one artifact.
    printf '{"type":"artifact","name":"answer","text":"%s. %s\\n"}\n' "$number" "$topic"
    # Files in this directory become artifacts.
    printf '%s. %s\n' "$number" "$topic" >>"$A2A_OUTPUT_DIR/answer.txt"
    sleep 0.2
done
echo '{"type":"complete","message":"Done."}'
