# A script as an agent: streaming, failures, and commands that can't be started. Sourced by scripts/first-hour.
# shellcheck shell=bash

# write NAME MODE LINE...: writes a script.
write() {
    local name=$1 mode=$2
    shift 2
    printf '%s\n' "$@" >"$name"
    chmod "$mode" "$name"
}

# starts_not NAME PATTERN COMMAND: checks that a command is refused, with its reason, before the server listens.
starts_not() { row "$1" 2 "$2" a2a serve --listen 127.0.0.1:0 --store memory --exec "$3"; }

# What users write instead of a script that can be started. Each error has the command that mends it.
write plain.sh 644 '#!/bin/sh' 'echo hello'
write none.py 755 'print("hello")'
write windows.sh 755 $'#!/bin/sh\r' $'echo hello\r'
write other.sh 755 '#!/opt/sh5' 'echo hello'
write env.rb 755 '#!/usr/bin/env ruby9' 'puts "hello"'
mkdir directory
starts_not 'script without permission' '^error: exec\.command: \./plain\.sh is not executable; run: chmod \+x \./plain\.sh$' ./plain.sh
starts_not 'script without an interpreter' "\./none\.py has no #! line; use --exec 'python3 \./none\.py'$" ./none.py
starts_not 'script with Windows line ends' "has Windows line ends; run: sed -i 's/.r\\\$//' \./windows\.sh$" ./windows.sh
starts_not 'missing interpreter' "its interpreter /opt/sh5 is missing; use --exec 'sh \./other\.sh'$" ./other.sh
starts_not 'missing interpreter of env' '\./env\.rb: its interpreter ruby9 is missing; ' ./env.rb
starts_not 'directory' '\./directory is a directory; name a program in it: --exec \./directory/agent\.py$' ./directory
starts_not 'missing file' '^error: exec\.command: \./none: no such file in /' ./none
starts_not 'missing file of an interpreter' '^error: exec\.command: none\.sh: no such file in /' 'sh none.sh'
starts_not 'missing program' 'nosuch: not in PATH, and not in this directory; install it, or write its path$' nosuch
starts_not 'pipe without a shell' "needs a shell; write sh -c '…'$" 'cat | tr a-z A-Z'
row '--dev with a public URL' 2 '--dev is for callers on this machine only; remove public_url$' \
    a2a serve --listen 127.0.0.1:0 --exec cat --dev --public-url https://agent.example
row '--dev on all addresses' 2 '--dev is for callers on this machine only; remove 0\.0\.0\.0:0$' \
    a2a serve --listen 0.0.0.0:0 --insecure --exec cat --dev
row 'help names the format with questions and files' 0 '--exec-format json-lines' a2a serve -h

# Each line is sent when it is written: the second one long after the first one.
# streams NAME SECONDS: checks that the first line is there this long before the end of the stream.
streams() {
    local first='' last
    while read -r line; do
        [[ $line != *first* ]] || first=$(date +%s%N)
    done < <(a2a stream "$url" hello -o jsonl 2>&1)
    last=$(date +%s%N)
    if [ -n "$first" ] && [ $(((last - first) / 1000000)) -ge 700 ]; then ok "$area: $1"; else failed "$area: $1: ${first:-no line}"; fi
}
write slow.sh 755 '#!/bin/sh' 'echo first' 'sleep 1' 'echo second'
start a2a serve --store memory --exec ./slow.sh
streams 'a shell script streams line by line'
row 'the card has the name of the script' 0 '^Name: +slow$' a2a discover "$url"
if command -v python3 >output; then
    write slow.py 644 'import time' 'print("first")' 'time.sleep(1)' 'print("second")'
    start a2a serve --store memory --exec 'python3 slow.py'
    streams 'a Python script streams line by line'
    row 'the card has the name of the script of Python' 0 '^Name: +slow$' a2a discover "$url"
else
    skipped "$area: Python" 'python3 is missing'
fi
if command -v node >output; then
    write slow.mjs 755 '#!/usr/bin/env node' 'console.log("first")' 'setTimeout(() => console.log("second"), 1000)'
    start a2a serve --store memory --exec slow.mjs
    streams 'a Node.js script in the working directory streams line by line'
else
    skipped "$area: Node.js" 'node is missing'
fi

# A script that fails: the developer sees why at the terminal, and the caller only with --dev.
write broken.sh 755 '#!/bin/sh' 'echo "loading" >&2' 'echo "no city: $API_TOKEN Bearer abc123def" >&2' 'exit 3'
export API_TOKEN=open-sesame
start a2a serve --store memory --exec ./broken.sh
row 'the caller of a broken script gets an error id' 1 'Agent execution failed: error id [0-9a-f-]{36}$' a2a send "$url" hello
printed 'the log has the failure' 'message="turn failed" .*error.cause="exit code 3: no city: \(hidden\) Bearer \(hidden\)'
start a2a serve --store memory --dev --exec ./broken.sh
printed 'the start names --dev' '^--dev: status messages of failed tasks have the causes'
row 'with --dev, the caller gets the failure' 1 '^ *exit code 3: no city: \(hidden\) Bearer \(hidden\)$' a2a send "$url" hello
row 'with --dev, the caller gets the last lines of stderr' 1 '^ *loading$' a2a send "$url" hello

# On a terminal, the log is short lines.
if command -v script >output && script --version 2>&1 | grep -q util-linux; then
    # The terminal of a server whose arguments follow.
    write on-terminal 755 '#!/bin/sh' 'exec script -qfec "a2a $*" /dev/null'
    start ./on-terminal serve --store memory --exec ./broken.sh
    a2a send "$url" hello >output 2>&1 || true
    printed 'a terminal has lines of stderr' '^[0-9]{2}:[0-9]{2}:[0-9]{2}Z agent: loading.?$'
    printed 'a terminal has the failure in one line' '^[0-9:]+Z WARN turn failed: exit code 3: no city: \(hidden\) Bearer \(hidden\).?$'
    printed 'a terminal has the request in one line' '^[0-9:]+Z SendMessage 200 in [0-9]+ ms task\.id=[0-9a-f-]{36}.?$'
    if grep -E '^[0-9:]{8}Z .{92}' server; then failed "$area: a line of the log is longer than 100 columns"; fi
else
    skipped "$area: terminal" 'script of util-linux is missing'
fi

# The agents that `a2a init` writes.
for kind in shell python node; do
    mkdir "$kind"
    row "a2a init $kind" 0 '^written: .*a2a\.toml and .*agent\.[a-z]+$' a2a init "$kind" --file "$kind/a2a.toml"
    case $kind in python) command=python3 ;; node) command=node ;; *) command=sh ;; esac
    if ! command -v "$command" >output; then
        skipped "$area: agent of a2a init $kind" "$command is missing"
        continue
    fi
    start a2a serve --store memory --config "$kind/a2a.toml"
    printf 'Lisbon\n2\n' >input
    row "a2a chat with the agent of a2a init $kind" 0 '2\. Lisbon' sh -c "a2a chat $url <input"
    cp output answers
    row "the agent of a2a init $kind asks" 0 'How many lines\?' cat answers
    row "the agent of a2a init $kind sends a file" 0 'answer\.txt' cat answers
done
