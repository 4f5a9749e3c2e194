#!/usr/bin/env bash
# py-rattler reads no channel through a SOCKS proxy, and socks5 has two meanings for other tools.
#
# Versions: py-rattler 0.28.0, uv 0.13.9, httpx2 2.16.2 with socksio 1.0.0, Python 3.11.
# Behaviour: with ALL_PROXY=socks5h://... (ssh -D on a login node) uv and httpx2 send their requests through the
# proxy. py-rattler is built without SOCKS and refuses the scheme, although the program is built from the same
# HTTP library as uv. With socks5:// uv looks up the name on this machine, where it may be unknown, and never
# asks the proxy; httpx2 lets the proxy look it up, as if socks5h had been written.
# Output seen: what the proxy was asked for, or the reason.
#   socks5h uv: asked for index.invalid
#   socks5h httpx2: asked for index.invalid
#   socks5h rattler: unsupported scheme socks5h
#   socks5 uv: not asked
#   socks5 httpx2: asked for index.invalid
# Who is hurt: whoever solves conda environments on a node whose only way out is ssh -D: pip packages lock there,
# conda packages do not, and the same variable works for some commands.
set -euo pipefail
work=$(mktemp -d)
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet py-rattler==0.28.0 uv==0.13.9 httpx2==2.16.2 socksio==1.0.0

cat >"$work/proxy.py" <<'PYTHON'
import socketserver

class Socks(socketserver.StreamRequestHandler):
    """Writes down the name that a client asks for (RFC 1928), and refuses it."""

    def handle(self):
        _, methods = self.rfile.read(2)
        self.rfile.read(methods)
        self.wfile.write(b"\x05\x00")
        kind = self.rfile.read(4)[3]
        name = self.rfile.read(self.rfile.read(1)[0]) if kind == 3 else self.rfile.read(4)
        self.rfile.read(2)
        print("name", name.decode("latin-1"), flush=True)
        self.wfile.write(b"\x05\x02\x00\x01\x00\x00\x00\x00\x00\x00")

class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

with Server(("127.0.0.1", 0), Socks) as server:
    print("port", server.server_address[1], flush=True)
    server.serve_forever()
PYTHON
cat >"$work/solve.py" <<'PYTHON'
import asyncio, sys
from rattler import Channel, Client, Gateway

channel = Channel("http://index.invalid/channel")
try:
    asyncio.run(Gateway(cache_dir=sys.argv[1], client=Client()).query([channel], ["noarch"], ["six"]))
except Exception as e:
    print(str(e).rpartition("Caused by: ")[2], file=sys.stderr)
PYTHON
python3 "$work/proxy.py" >"$work/log" 2>"$work/errors" &
proxy=$!
trap 'kill "$proxy"; rm -rf "$work"' EXIT
until grep -q port "$work/log"; do sleep 0.1; done
port=$(sed -n 's/port //p' "$work/log")

through() { # SCHEME NAME COMMAND...: what the proxy was asked for, or the last line of the command
    local scheme=$1 name=$2 lines
    shift 2
    lines=$(wc -l <"$work/log")
    env -u NO_PROXY -u no_proxy ALL_PROXY="$scheme://127.0.0.1:$port" "$@" >"$work/out" 2>&1 || true
    if asked=$(tail -n +$((lines + 1)) "$work/log" | grep -m 1 name); then
        echo "$scheme $name: asked for ${asked#name }"
    elif grep -q "unsupported scheme" "$work/out"; then
        echo "$scheme $name: $(grep -om 1 'unsupported scheme.*' "$work/out")"
    else
        echo "$scheme $name: not asked"
    fi
}

{
    for scheme in socks5h socks5; do
        through $scheme uv "$work/venv/bin/uv" pip compile --quiet --no-cache --no-config \
            --index-url http://index.invalid/simple - <<<six
        through $scheme httpx2 "$work/venv/bin/python" -c 'import httpx2; httpx2.get("http://index.invalid/")'
    done
    through socks5h rattler "$work/venv/bin/python" "$work/solve.py" "$work/cache"
} | sort | tee "$work/found"
sort >"$work/expected" <<'SEEN'
socks5h uv: asked for index.invalid
socks5h httpx2: asked for index.invalid
socks5h rattler: unsupported scheme socks5h
socks5 uv: not asked
socks5 httpx2: asked for index.invalid
SEEN
cmp "$work/found" "$work/expected"
