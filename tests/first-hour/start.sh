# The demo agent, called with the program's own client. Sourced by scripts/first-hour.
# shellcheck shell=bash

start a2a serve --store memory
printed 'a2a serve prints its address' '^listening on http://127\.0\.0\.1:'
row 'a2a send prints the reply' 0 '\[echo\] hello$' a2a send "$url" hello
row 'a2a discover prints the name of the agent' 0 '^Name: +Demo$' a2a discover "$url"
printed 'the start ends with the key that stops it' 'Ctrl-C stops the server\.$'
if [ "$(sed '/Ctrl-C stops/q' server | wc -l)" -gt 12 ]; then failed "$area: the start has more than 12 lines"; fi
row 'lines of an artifact are indented' 0 '^    two$' sh -c "printf 'one\ntwo' | a2a send $url"
task=$(a2a send "$url" hello | sed -n 's/^Task: *//p')
row 'a message to a task that has ended' 6 'in a terminal state$' a2a send "$url" --task "$task" again
row 'what to do about it' 6 'get task URL TASK. prints its state and result; send without --task' a2a send "$url" --task "$task" again
row 'a cancel over 0.3' 6 'Task cannot be canceled' a2a cancel "$url" "$task" --protocol 0.3
printed 'the request log has the cancel as one' 'rpc.method=tasks/cancel operation=CancelTask '
row 'an unknown host, as behind a proxy' 0 '^set public_url or allowed_hosts$' \
    sh -c "curl -s -H 'host: agent.example' $url/tasks | grep -o 'set public_url or allowed_hosts'"
stop
printed 'the stop waits for turns if there are any' '^stopping, after running turns if there are any'

row 'init creates the directory' 0 '^written: new/a2a.toml and new/agent.py$' a2a init python --file new/a2a.toml
touch agent.py
row 'init names the flag that helps' 2 'agent.py: the file exists; .*--file new/a2a.toml$' a2a init python
