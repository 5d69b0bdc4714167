#!/usr/bin/env bash
# Each file of deploy/ before the tool that will read it; silent when all is well. Needs promtool,
# haproxy, nginx, openssl and systemd-analyze of Debian; the others come with the dev extra.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=$PWD/.venv/bin
PATH=$PATH:/usr/sbin
scratch=$(mktemp -d -t lifeboat-deploy.XXXXXX)
trap 'rm -rf "$scratch"' EXIT

# Runs a check, and shows what it said when it fails.
quietly() {
    if ! "$@" >"$scratch/said" 2>&1; then
        echo "failed: $*" >&2
        cat "$scratch/said" >&2
        exit 1
    fi
}

quietly "$bin/hadolint" deploy/Dockerfile
quietly "$bin/docker-compose" -f deploy/compose.yaml config --quiet

quietly promtool check config deploy/prometheus/prometheus.yml
quietly promtool test rules deploy/prometheus/tests/*.yml

for folder in base two-routers all; do
    "$bin/kubectl" kustomize "deploy/kubernetes/$folder" >"$scratch/$folder.yaml"
    # Kinds of operators (ServiceMonitor, ScaledObject) have no schema here: tests/deploy knows them.
    quietly "$bin/kubernetes-validate" --strict --no-warn "$scratch/$folder.yaml"
done

# Its program is where the operator installs it; here it is ours.
sed "s|/opt/lifeboat/bin/lifeboat|$bin/lifeboat|" deploy/lifeboat.service >"$scratch/lifeboat.service"
quietly systemd-analyze verify "$scratch/lifeboat.service"
# Warnings are not in its exit code.
if [ -s "$scratch/said" ]; then cat "$scratch/said" >&2; exit 1; fi

quietly openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=lifeboat.example \
    -keyout "$scratch/lifeboat.key" -out "$scratch/lifeboat.crt"
cat "$scratch/lifeboat.crt" "$scratch/lifeboat.key" >"$scratch/lifeboat.pem"
sed "s|/etc/haproxy/|$scratch/|" deploy/haproxy.cfg >"$scratch/haproxy.cfg"
quietly haproxy -c -q -f "$scratch/haproxy.cfg"
{
    echo "pid $scratch/nginx.pid; error_log stderr; events {} http { access_log off;"
    sed "s|/etc/nginx/|$scratch/|; s|listen 443|listen 127.0.0.1:8443|" deploy/nginx.conf
    echo "}"
} >"$scratch/nginx.conf"
quietly nginx -t -q -p "$scratch" -c "$scratch/nginx.conf"
if [ -s "$scratch/said" ]; then cat "$scratch/said" >&2; exit 1; fi
