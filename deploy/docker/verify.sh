#!/usr/bin/env bash
# Builds the image and proves it, without a container engine's daemon or a registry: buildah executes the
# Dockerfile on a Debian that debootstrap makes, and the result runs in new namespaces.
set -euo pipefail

usage() {
    cat <<'TEXT'
verify.sh [--target tcp|rdma|all] [--python DIR] [--context DIR] [--keep] [--fresh] [--engine docker|podman]

  --target    what is built and proved (all)
  --python    the base has the CPython of this prefix in /usr/local, as images of Python have; else Debian's
  --context   the folder that is built from (the repository that this file is in)
  --keep      leaves buildah's storage in build/image/kept
  --fresh     makes the base again, which is kept in build/image otherwise
  --engine    builds and runs with a container engine instead; that proves less: the build, the health
              check, a PUSH/PULL pair, and the end

Needs root, buildah, debootstrap, util-linux, iproute2 and Python 3.11 or newer. Debian's packages and Python's come from where
this machine's apt and pip are set to.
Exit code: 0 all checks pass, 1 a check fails, 2 this machine cannot run the checks.
TEXT
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$(cd "$here/../.." && pwd)
target=all python='' context=$repository keep='' fresh='' engine=''
while (($#)); do
    case $1 in
        --target) target=${2:?} && shift 2 ;;
        --python) python=$(cd "${2:?}" && pwd) || exit 2; shift 2 ;;
        --context) context=$(cd "${2:?}" && pwd) || exit 2; shift 2 ;;
        --engine) engine=${2:?} && shift 2 ;;
        --keep) keep=1 && shift ;;
        --fresh) fresh=1 && shift ;;
        -h | --help) usage && exit 0 ;;
        *) usage >&2 && exit 2 ;;
    esac
done
case $target in
    tcp | rdma) targets=("$target") ;;
    all) targets=(tcp rdma) ;;
    *) usage >&2 && exit 2 ;;
esac

# --- with an engine -----------------------------------------------------------------------------------------
with_engine() { # with_engine TARGET
    local image=transfer:verify-$1 container=transfer-verify-$1-$$ i
    "$engine" build --file "$context/deploy/docker/Dockerfile" --target "$1" --tag "$image" \
        --build-arg VERSION="$(python3 "$context/deploy/version.py")" "$context"
    # shellcheck disable=SC2064
    trap "$engine rm --force $container >/dev/null 2>&1 || true" EXIT
    "$engine" run --detach --name "$container" --read-only --tmpfs /tmp --network none --cap-drop ALL \
        --security-opt no-new-privileges "$image" >/dev/null
    for ((i = 0; i < 120; i++)); do
        "$engine" exec "$container" transfer health && break
        sleep 0.5
    done
    "$engine" exec "$container" transfer health
    "$engine" exec "$container" transfer pull --bind tcp://127.0.0.1:7001 --count 2 --timeout 30 &
    "$engine" exec "$container" transfer push --connect tcp://127.0.0.1:7001 --confirm --data one --data two
    wait $!
    "$engine" stop --time 20 "$container" >/dev/null
    [ "$("$engine" inspect --format '{{.State.ExitCode}}' "$container")" = 0 ]
    "$engine" rm --force "$container" >/dev/null
    echo "$1: built, healthy, two messages, ended with status 0"
    "$engine" image inspect --format '{{.Size}} bytes' "$image"
}
if [ -n "$engine" ]; then
    command -v "$engine" >/dev/null || { echo "verify.sh: $engine is not installed here" >&2 && exit 2; }
    for one in "${targets[@]}"; do with_engine "$one"; done
    exit 0
fi

# --- without --------------------------------------------------------------------------------------------------
[ "$(id -u)" = 0 ] || { echo "verify.sh: it mounts and changes roots: run it as root" >&2 && exit 2; }
for tool in buildah unshare nsenter setpriv chroot mount ip python3; do
    command -v "$tool" >/dev/null || { echo "verify.sh: $tool is not installed here" >&2 && exit 2; }
done
cache=$repository/build/image
place=$cache/work.$$
worker=
clean() {
    # All that it started is in its process namespace, which ends with it.
    [ -z "$worker" ] || { kill -KILL "$worker" 2>/dev/null && wait "$worker" 2>/dev/null; } || true
    # Every mount was made in a namespace that has ended: what is here are plain folders.
    if [ -n "$keep" ] && [ -d "$place" ]; then
        rm -rf --one-file-system "$cache/kept" && mv "$place" "$cache/kept"
        echo "kept: $cache/kept"
    else
        rm -rf --one-file-system "$place"
    fi
}
trap clean EXIT
trap 'exit 130' INT TERM HUP
[ -z "$fresh" ] || rm -rf --one-file-system "$cache"/debian-*
mkdir -p "$place"
cd "$repository"
# In the background: a signal then reaches this shell at once.
PYTHONDONTWRITEBYTECODE=1 unshare --mount --pid --fork --kill-child --mount-proc \
    python3 -m deploy.docker --target "$target" --context "$context" --cache "$cache" --place "$place" \
    ${python:+--python "$python"} &
worker=$!
wait "$worker"
