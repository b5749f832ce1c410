# What scripts/readme and scripts/interop share: how a result is told, and a server that does not outlive its script.
# To be sourced, with the root of the repository as the working directory.
# shellcheck shell=bash

# Each result is one line; scripts/interop counts them.
ok() { printf 'ok %s\n' "$1"; }
failed() {
    failures=$((failures + 1))
    printf 'FAILED %s\n' "$1"
}
skipped() { printf 'skipped %s: %s\n' "$1" "$2"; }

failures=0
servers=()

# serve OUTPUT COMMAND...: starts a server, and sets `addr` to where it says on OUTPUT that it listens. It may have to be built.
serve() {
    local output=$1 until=$((SECONDS + 3000))
    shift
    "$@" >"$output" </dev/null &
    servers+=("$!")
    trap 'kill -KILL "${servers[@]}" 2>/dev/null || true' EXIT
    until addr=$(sed -n 's|^listening on http://||p' "$output") && [ -n "$addr" ]; do
        if ! kill -0 "${servers[-1]}" 2>/dev/null || [ "$SECONDS" -gt "$until" ]; then
            return 1
        fi
        sleep 0.1
    done
}

# Asks the servers to end, and fails unless each does so by itself, soon, and with success.
end_servers() {
    local until=$((SECONDS + 20)) server
    kill -TERM "${servers[@]}" || return 1
    for server in "${servers[@]}"; do
        while kill -0 "$server" 2>/dev/null; do
            [ "$SECONDS" -le "$until" ] || return 1
            sleep 0.1
        done
        wait "$server" || return
    done
    trap - EXIT
}
