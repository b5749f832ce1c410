# Functions that several scripts share: the program, printing results, and starting servers that end with the script. Sourced,
# with the root of the repository as the working directory.
# shellcheck shell=bash

# Path of the program that the scripts run: a release build, or one that is built already, whose path is in PROGRAM.
a2a=${PROGRAM:-${CARGO_TARGET_DIR:-$PWD/target}/release/a2a}
# Program with settings that `a2a serve` has not: `examples/tuned.rs`.
tuned=$(dirname "$a2a")/examples/tuned
build() { [ -n "${PROGRAM-}" ] || cargo build --quiet --release "$@"; }

# Each result is one line; `summary` counts those in the file `log`.
ok() { printf 'ok %s\n' "$1"; }
failed() {
    failures=$((failures + 1))
    printf 'FAILED %s\n' "$1"
}
skipped() { printf 'skipped %s: %s\n' "$1" "$2"; }

# results COMMAND...: runs a command and adds its output to the file `log`. A command that fails without a FAILED line counts as
# a failure too. Uses the directory `work`.
results() {
    local status=0
    "$@" 2>&1 </dev/null | tee "$work/part" || status=$?
    if [ "$status" != 0 ] && ! grep -q '^FAILED ' "$work/part"; then
        failed "$* ends with status $status" | tee -a "$work/part"
    fi
    cat "$work/part" >>"$log"
}

# Prints the number of results of each kind in the file `log`, and fails if there is a failure.
summary() {
    count() { grep -c "^$1 " "$log" || true; }
    printf '\n%s passed, %s failed, %s skipped\n' "$(count ok)" "$(count FAILED)" "$(count skipped)"
    [ "$(count FAILED)" = 0 ]
}

# apt_install PACKAGE...: installs Debian packages, without starting their services. If that is not possible, the last line of the
# output says why.
apt_install() {
    if [ "$(id -u)" != 0 ] || ! command -v apt-get; then
        echo "$* is missing, and only root can install it, with apt-get" && return 1
    fi
    local install=(env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install --quiet --yes --no-install-recommends "$@")
    timeout 600 "${install[@]}" || { timeout 300 apt-get update --quiet && timeout 600 "${install[@]}"; }
}

# install_missing COMMAND PACKAGE: as `apt_install`, unless the command is there.
install_missing() { command -v "$1" || apt_install "$2"; }

# minimal_debian DIR PACKAGE...: makes the file system of a minimal Debian of this release with these packages. If that is not possible,
# the last line of the file `install` says why.
minimal_debian() {
    local root=$1 release sources
    shift
    rm -rf "$root"
    install_missing mmdebstrap mmdebstrap >"$work/install" 2>&1 </dev/null || return 1
    release=$(. /etc/os-release && echo "$VERSION_CODENAME")
    sources=$(find /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources -size +0 2>/dev/null | tail -n 1)
    timeout 500 mmdebstrap --quiet --variant=minbase --include="$(tr ' ' , <<<"$*")" "$release" "$root" "$sources" \
        >"$work/install" 2>&1 </dev/null
}

# Makes grpcurl available in PATH, or prints why that is not possible and succeeds.
grpcurl_missing() {
    command -v grpcurl >"$work/which" && return 1
    command -v go >"$work/which" || { echo "grpcurl is missing, and there is no go to install it" && return; }
    GOBIN="$PWD/target/tools" timeout 500 go install "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4" \
        >"$work/go" 2>&1 </dev/null && return 1
    echo "grpcurl is missing, and go can't install it: $(tail -n 1 "$work/go")"
}

# Prints a port on which no program listens.
free_port() {
    local port
    until port=$((20000 + RANDOM % 10000)) && ! true 2>/dev/null >"/dev/tcp/127.0.0.1/$port"; do :; done
    echo "$port"
}

failures=0
servers=()

# serve OUTPUT COMMAND...: starts a server, and sets `addr` to the listen address that it prints to OUTPUT. The command may have
# to build the server first.
serve() {
    local output=$1 until=$((SECONDS + 3000))
    shift
    # An address from a previous run must not be read.
    : >"$output"
    "$@" >"$output" </dev/null &
    servers+=("$!")
    trap 'kill -KILL "${servers[@]}" 2>/dev/null || true' EXIT
    until addr=$(sed -nE 's|^listening on https?://||p' "$output") && [ -n "$addr" ]; do
        if ! kill -0 "${servers[-1]}" 2>/dev/null || [ "$SECONDS" -gt "$until" ]; then
            return 1
        fi
        sleep 0.1
    done
}

# Stops the servers with SIGTERM, and fails unless each exits with status 0 within 20 seconds.
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
