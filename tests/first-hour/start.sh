# The demo agent, called with the program's own client. Sourced by scripts/first-hour.
# shellcheck shell=bash

start a2a serve --store memory
printed 'a2a serve prints its address' '^listening on http://127\.0\.0\.1:'
row 'a2a send prints the reply' 0 '\[echo\] hello$' a2a send "$url" hello
row 'a2a discover prints the name of the agent' 0 '^Name: +Demo$' a2a discover "$url"
