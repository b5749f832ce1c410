# Functions of run and nightly: steps, their times, and a summary at the end. Sourced, with the root of the repository as the
# working directory.
# shellcheck shell=bash

work=target/ci
mkdir -p "$work"
: >"$work/log"
times=()

# step COMMAND...: runs a command, and ends the script if it fails.
step() {
    local started=$SECONDS status=0
    printf '\n== %s\n' "$*"
    "$@" 2>&1 </dev/null | tee -a "$work/log" || status=$?
    times+=("$(printf '%5d s  %s' $((SECONDS - started)) "$*")")
    [ "$status" = 0 ] || exit "$status"
}

# Prints the time of each step, and the number of results of all test runners: the totals of `cargo test`, and the lines of the
# scripts.
summary() {
    printf '\n== times\n'
    [ "${#times[@]}" = 0 ] || printf '%s\n' "${times[@]}"
    printf '%5d s  in total\n\n' "$SECONDS"
    awk '
        /^test result: / { passed += $4; failed += $6; skipped += $8 }
        /^ok / { passed++ }
        /^FAILED / { failed++ }
        /^skipped / { skipped++ }
        END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped }
    ' "$work/log"
}
trap summary EXIT

# rotated NUMBER ITEM...: prints so many of the items, which are others for another commit.
rotated() {
    local number=$1 commit
    shift
    commit=$(git rev-parse HEAD 2>/dev/null) || commit=0000000
    local items=("$@") first=$((16#${commit:0:7} % $#)) n
    for ((n = 0; n < number; n++)); do
        echo "${items[(first + n) % $#]}"
    done
}
