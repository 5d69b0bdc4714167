# shellcheck shell=bash
# What the run-*.sh and install-*.sh here share; to be sourced, from the project's folder.
set -euo pipefail

# install_locked NAME WHAT: once, or anew after a change, what requirements-NAME.lock names, into
# .venv-NAME. Without dependencies: a lock holds all that is needed, and nothing more.
install_locked() {
    local venv=.venv-$1 lock=deploy/requirements-$1.lock
    if [ -e "$venv/.locked" ] && [ ! "$lock" -nt "$venv/.locked" ]; then return; fi
    echo "installing $2 into $venv" >&2
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
        --requirement "$lock"
    touch "$venv/.locked"
}

# begin_server NAME COMMAND...: start a model server, to be ended with this script. log: what it says.
begin_server() {
    # Each child in a process group of its own: a Ctrl-C reaches this script alone, which passes it
    # to the router, waits until that has drained, and only then ends the server behind it.
    set -m
    log=$(mktemp -t "lifeboat-$1.XXXXXX")
    shift
    "$@" >"$log" 2>&1 &
    server=$!
    trap end_server EXIT
}

end_server() {
    kill "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
    rm -f "$log"
}

# await_server WHAT TEXT SECONDS: wait until the server has said a text; it has so long for that.
await_server() {
    local end=$((SECONDS + $3))
    until grep -q "$2" "$log"; do
        if ! kill -0 "$server" 2>/dev/null; then
            fail_with_log "the $1 server did not start"
        elif ((SECONDS >= end)); then
            fail_with_log "the $1 server did not answer within $3 s"
        fi
        sleep 0.2
    done
}

fail_with_log() {
    echo "$1; it said:" >&2
    tail -n 20 "$log" >&2
    exit 1
}

# run_router ARGS...: serve until the router has ended, and exit as it did.
run_router() {
    .venv/bin/lifeboat serve "$@" &
    router=$!
    trap 'kill -INT "$router" 2>/dev/null || true' INT
    trap 'kill -TERM "$router" 2>/dev/null || true' TERM
    local status=0
    while kill -0 "$router" 2>/dev/null; do
        status=0
        wait "$router" || status=$?   # a signal ends the wait, not the router
    done
    exit "$status"
}
