# Calling agents from the command line: exit codes, errors with their next step, JSON, the doctor and the help. Sourced by
# scripts/first-hour.
# shellcheck shell=bash

start a2a serve --store memory
plain=$url host=${url#http://}
for command in send stream; do
    row "$command of a task that completes" 0 'completed' a2a "$command" "$plain" hello
    row "$command of a task that fails" 1 'error: the task ended with the state failed' a2a "$command" "$plain" '/fail no'
    row "$command of a task that is rejected" 1 'the state rejected' a2a "$command" "$plain" '/reject no'
    row "$command that ignores the state" 0 'failed' a2a "$command" "$plain" '/fail no' --exit-status=false
done
row 'chat with a turn that fails' 1 'the state failed' sh -c "echo '/fail no' | a2a chat $plain"
row 'chat continues a task that asks' 0 '^Paris$' sh -c "printf '/ask City?\nParis\n' | a2a chat $plain"
row 'an unknown task' 6 'error: Task not found: 42' a2a get task "$plain" 42
row 'stdin is the message' 0 '\[echo\] hi$' sh -c "echo hi | a2a send $plain"
row 'stdin that is empty' 2 'the message is empty' a2a send "$plain"
row 'an open pipe is not read if there is a message' 0 '\[echo\] hi$' sh -c "sleep 5 | timeout 4 a2a send $plain hi & wait \$!; exit 0"
row 'an error as JSON' 6 '"code": -32001' a2a get task "$plain" 42 -o json
row 'the exit code in JSON' 6 '"exitCode": 6' a2a cancel "$plain" 42 --json
row 'an error of the command line as JSON' 2 '"exitCode": 2' a2a send --json
row '--json is -o json' 0 '"state": "TASK_STATE_COMPLETED"' a2a send "$plain" hello --json
row '--json MESSAGE of the official command line' 0 '\[echo\] hi$' a2a send "$plain" --json '{"parts": [{"text": "hi"}]}'
row 'tasks in a table of 80 columns' 0 '^ID +STATUS +CONTEXT$' a2a list tasks "$plain"
if grep -En '^.{81}' output; then failed 'cli: a row of the table is longer than 80 columns'; fi
row 'a URL in the place of a command' 2 "a2a send $host 'Hello'" a2a "$host"
row 'a card without the command' 2 "a2a card get $host" a2a card "$host"

row 'the doctor finds nothing' 0 '^Verdict: sound' a2a doctor "$plain"
row 'the doctor cancels what runs' 0 'cleanup +nothing runs' a2a doctor "$plain" --message '/ask City?' --protocol 1.0
row 'nothing waits after the doctor' 0 '^ID +STATUS' a2a list tasks "$plain" --status input-required
if [ "$(wc -l <output)" != 1 ]; then failed 'cli: the doctor leaves tasks that wait'; fi

row 'a port without a server' 3 'connection refused' a2a send localhost:9 hi
row 'the next step' 3 '^  -> start the agent' a2a send localhost:9 hi
row 'the doctor at a port without a server' 3 '^error: the agent cannot be reached$' a2a doctor localhost:9
if [ "$(grep -c 'start the agent' output)" != 1 ]; then failed 'cli: the doctor repeats the next step'; fi
row 'a name without an address' 3 'the host name is unknown' a2a send https://agent.invalid hi
row 'TLS at a port without' 3 "use the URL http://$host" a2a send "https://$host" hi
stop

start a2a serve --store memory --tls-cert self_signed
host=${url#https://}
row 'a certificate of nobody known' 3 'its certificate is of an unknown authority' a2a send "$url" hi
row 'the command that fetches the certificate' 3 "openssl s_client -connect $host" a2a send "$url" hi
row 'no TLS at a port with TLS' 3 "use the URL https://$host" a2a send "http://$host" hi
row 'any certificate' 0 '\[echo\] hi$' a2a send "$url" hi --insecure-tls
if command -v openssl >/dev/null; then
    openssl s_client -connect "$host" </dev/null 2>/dev/null | openssl x509 >ca.pem
    row 'the certificate that was fetched' 0 '\[echo\] hi$' a2a send "$url" hi --ca ca.pem
    openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=agent.example \
        -addext subjectAltName=DNS:agent.example -addext basicConstraints=critical,CA:FALSE 2>/dev/null
    start a2a serve --store memory --tls-cert cert.pem --tls-key key.pem
    row 'a certificate for another name' 3 'its certificate is for another name: agent.example' a2a send "$url" hi --ca cert.pem
else
    skipped 'cli: certificates' 'openssl is missing'
fi

A2A_TOKEN=a-token-of-thirty-characters-here start a2a serve --store memory
row 'no token' 4 'A2A_CLIENT_TOKEN, or --token' a2a send "$url" hi
row 'a token' 0 '\[echo\] hi$' a2a send "$url" hi --token a-token-of-thirty-characters-here
stop

if command -v python3 >/dev/null; then
    python3 -u -m http.server 0 --bind 127.0.0.1 >page 2>&1 &
    page=$!
    for _ in $(seq 100); do grep -q 'port [0-9]' page && break || sleep 0.1; done
    port=$(grep -Eo 'port [0-9]+' page | grep -Eo '[0-9]+')
    row 'a page that is no agent' 3 'agent-card.json: HTTP 404' a2a send "localhost:$port" hi
    row 'what to do about it' 3 '^  -> give the URL of an agent' a2a send "localhost:$port" hi
    row 'the doctor at a page that is no agent' 3 '^error: there is no card that can be used$' a2a doctor "localhost:$port"
    kill "$page"
else
    skipped 'cli: a page that is no agent' 'python3 is missing'
fi

row 'a2a -h' 0 '^Call an agent:' a2a -h
if [ "$(wc -l <output)" -gt 24 ]; then failed 'cli: a2a -h is longer than 24 lines'; fi
row 'a2a serve -h' 0 '^Examples:' a2a serve -h
if [ "$(wc -l <output)" -gt 45 ]; then failed 'cli: a2a serve -h is longer than 45 lines'; fi
row 'a2a help' 0 '^  130  Ctrl-C' a2a help
row 'a2a help has a line for each command' 0 '^  stream +Sends a message' a2a help
row 'a2a help serve' 0 '^  a2a serve --exec' a2a help serve
row 'a2a help config limits' 0 '^limits.task_bytes$' a2a help config limits
for topic in agents auth config deploy errors output; do row "a2a help $topic" 0 'a2a' a2a help "$topic"; done
row 'the examples at the end of a long help' 0 "^  a2a chat localhost:8080" a2a chat --help
row 'a manual page' 0 '^\.TH a2a 1' sh -c "a2a man | grep '^.TH'"
row 'manual pages of all commands' 0 '^a2a-push-create.1$' sh -c 'a2a man pages && ls pages'
row 'examples in a manual page' 0 'a2a send localhost:8080' grep 'a2a send localhost' pages/a2a-send.1
