#!/usr/bin/env bash
# pip caches downloads over http only from hosts that are declared as trusted.
#
# Versions: pip 26.3, Python 3.11; six 1.17.0 as the package.
# Behaviour: pip has an HTTP cache for https, and none for plain http: --find-links and --index-url of an http
# server are downloaded in full each time, whatever Cache-Control the server sends, and without a word, also
# where pip does not ask for --trusted-host (127.0.0.1, localhost). With --trusted-host HOST, which switches
# checks off, the same server's files are cached.
# Output seen: requests for the wheel in two installations, each into a new folder, with one cache folder:
#   without --trusted-host: 2
#   with --trusted-host: 1
# Who is hurt: images that are built beside a mirror on the same host or in the same cluster. A cache mount for
# pip (RUN --mount=type=cache,target=/root/.cache/pip) stays empty, and every build downloads gigabytes again.
set -euo pipefail
work=$(mktemp -d)
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet pip==26.3
mkdir "$work/wheels"
"$work/venv/bin/pip" download --quiet --no-deps --dest "$work/wheels" six==1.17.0

cat >"$work/server.py" <<'PYTHON'
import functools, http.server, sys

class Handler(http.server.SimpleHTTPRequestHandler):
    def end_headers(self):
        self.send_header("Cache-Control", "max-age=365000000, immutable, public")
        super().end_headers()

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=sys.argv[1]))
print(server.server_port, flush=True)
server.serve_forever()
PYTHON
python3 "$work/server.py" "$work/wheels" >"$work/port" 2>"$work/log" &
server=$!
trap 'kill "$server"; rm -rf "$work"' EXIT
until [ -s "$work/port" ]; do sleep 0.1; done
port=$(cat "$work/port")

requests() { # NAME [OPTION...]: the number of requests for the wheel in two installations
    local name=$1
    shift
    : >"$work/log"
    for n in 1 2; do
        "$work/venv/bin/pip" install --quiet --no-deps --no-index --cache-dir "$work/cache-$name" \
            --find-links "http://127.0.0.1:$port/" --target "$work/$name-$n" "$@" six==1.17.0
    done
    grep -c 'GET /six-.*\.whl' "$work/log"
}

plain=$(requests plain)
trusted=$(requests trusted --trusted-host "127.0.0.1:$port")
echo "without --trusted-host: $plain"
echo "with --trusted-host: $trusted"
[ "$plain" = 2 ] && [ "$trusted" = 1 ]
