# What an operator meets: several agents, backups, tokens, the start of the server. Sourced by scripts/first-hour.
# shellcheck shell=bash

# A program that runs a command without the lines of its audit log.
printf '#!/bin/sh\n"$@" 2>errors; status=$?; grep -v a2a_service::audit errors; exit $status\n' >quiet
chmod +x quiet

# Several agents: each command is about all of them.
printf '[[agents]]\nname = "geo"\n[[agents]]\nname = "math"\n' >a2a.toml
start a2a serve
printed 'the start prints the configuration file' "^configuration file: $PWD/a2a.toml\$"
printed 'the start prints where the tasks are' "^tasks are stored in $PWD/a2a.geo.db\$"
printed 'the start prints how to keep tasks in memory only' '--store memory'
printed 'the start prints a command for each agent' 'a2a send http://.*/math hello$'
row 'a message to an agent' 0 '\[echo\] hello' a2a send "$url/geo" hello
row 'admin check is about each agent' 0 'a2a.math.db, no problems' a2a admin check
if grep -q '^note' output; then failed "$area: a command that works beside a server has a note"; fi
row 'admin says that a server is running, and what works' 0 '^note: list, show, .* work beside a server' \
    sh -c 'a2a admin gc 2>&1 | grep ^note'
row 'admin list is a table' 0 '^ID .* STATE +AGE  OWNER' a2a admin list
row 'admin list as JSON names the agent' 0 '"agent": "geo"' a2a admin list -o json
row 'a backup has all agents' 0 'backed up a2a.math.db to all/math.db' ./quiet a2a admin backup all
row 'an export has all agents' 0 'exported 1 task to tasks/geo.jsonl' ./quiet a2a admin export tasks
row 'an export of several agents to stdout is refused' 2 'name a directory' a2a admin export
row 'a restore beside a server is refused' 1 'nothing was restored: .* is in use; stop the server' \
    ./quiet a2a admin restore all
row 'an unknown agent is named' 2 'no agent gap in \[geo, math\]' a2a admin list --agent gap
stop
row 'a restore replaces nothing' 1 'a2a.geo.db exists; move it away' a2a admin restore all
rm a2a.*.db
row 'a directory without a database' 1 "^error: $PWD/a2a.db: there is no task database\$" \
    a2a admin list --config /dev/null
row 'a restore has all agents' 0 'restored a2a.geo.db from all/geo.db' ./quiet a2a admin restore all
row 'the task is back' 0 'checked 1 task in a2a.geo.db' a2a admin check
rm a2a.math.db a2a.toml
printf '[[agents]]\nname = "math"\n' >a2a.toml
row 'a copy of one database fits one agent' 0 'restored a2a.math.db' ./quiet a2a admin restore all/geo.db --agent math
row 'a copy of one database does not fit all agents' 2 'name one with --agent' a2a admin restore all/geo.db
rm a2a.toml

# Tokens.
row 'a token may read and write tasks' 0 '^a2a_' ./quiet a2a token --file tokens.json new ada
row 'a token gets more only when asked' 0 '^a2a_' ./quiet a2a token --file tokens.json new root --scope all
row 'token list is a table' 0 '^ada +ada +never +bearer token +tasks:read tasks:write$' a2a token --file tokens.json list
row 'token list as JSON' 0 '"name": "root"' a2a token --file tokens.json list -o json
row 'a rotation says until when the old secret is accepted' 0 'the old secret of ada is accepted until 20' \
    ./quiet a2a token --file tokens.json rotate ada
row 'an unknown scope is refused' 1 'none is not a scope' a2a token --file tokens.json new eve --scope none
if command -v script >output && script --version 2>&1 | grep -q util-linux; then
    row 'on a terminal, a command has no lines of the audit log' 0 '^a2a_' \
        script -qec 'a2a token --file tokens.json new eva' /dev/null
    if grep -q a2a_service::audit output; then failed "$area: the audit log is on the terminal"; fi
fi
row 'a short token is refused on a public address' 2 '^error: A2A_TOKEN: the token is shorter than 16 characters' \
    env A2A_TOKEN=secret a2a serve --listen 0.0.0.0:0 --store memory
row 'a foreign variable is no warning' 0 '^listen = ' env A2A_BIN=/bin/a2a a2a serve --print-config
if grep -q 'A2A_BIN' output; then failed "$area: A2A_BIN causes a warning"; fi
row 'a misspelled variable is a warning' 0 'A2A_LISTTEN: unknown variable, ignored; did you mean A2A_LISTEN' \
    env A2A_LISTTEN=1 a2a serve --print-config

# The start of the server.
start env A2A_TOKEN=sesame-sesame-sesame a2a serve --store memory
printed 'commands have the token of the variable' 'Bearer \$A2A_TOKEN'
start a2a serve --store memory --auth-tokens tokens.json --tls-cert self_signed
printed 'with TLS, the address is one of TLS' '^listening on https://127'
printed 'a self-signed certificate is accepted by the commands' 'grpcurl -insecure'
printed 'the start says where the token is from' 'TOKEN=\.\.\.  # the secret that .a2a token new. has printed'
printed 'the program gets the token too' 'a2a send .* --insecure-tls --token "\$TOKEN"'
# The server notices a new token within a second.
row 'the printed command works' 0 '\[echo\] hello' sh -c "TOKEN=\$(a2a token --file tokens.json new me 2>errors); sleep 2
    a2a send $url hello --insecure-tls --token \$TOKEN"
start env STATE_DIRECTORY="$PWD" a2a serve
printed 'tasks are in the directory of systemd' "^tasks are stored in $PWD/a2a.db\$"

# Leftovers.
start a2a serve --store memory --card-extended open
row 'a card without further content is not declared' 0 '"extendedAgentCard":false' sh -c "curl -s $url/.well-known/agent-card.json |
    grep -o '\"extendedAgentCard\":false'"
start a2a serve --store memory --docs=false
row 'disabled documentation says how to enable it' 0 'enables it with `docs` \(--docs\)' sh -c "curl -s $url/docs |
    grep -o 'the operator of this server.*docs)'"
