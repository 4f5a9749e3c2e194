#!/usr/bin/env bash
# Material for MkDocs: pages of the plugin "offline" load a script from another host.
#
# Versions: mkdocs-material 9.7.0, mkdocs 1.6.1.
# Behaviour: the plugin puts the search index into a script, so that the search works from a disk. Browsers start no
# worker from a file, so it also adds a polyfill to every page: from unpkg.com. Without a network this script is
# missing, and the search stays empty, in the one case that the plugin is for. It adds none if a name in
# extra.polyfills contains "iframe-worker"; the plugin "privacy" downloads it during the build.
# Output seen: <script src="https://unpkg.com/iframe-worker/shim"></script>
# Who is hurt: documentation that is shipped for hosts without network, and sites that promise to load nothing from
# elsewhere.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q mkdocs-material==9.7.0 mkdocs==1.6.1
mkdir "$work/docs"
echo "# Home" >"$work/docs/index.md"
build() {
    printf '%s\n' "site_name: x" "theme: {name: material, font: false}" "plugins: [search, offline]" "$@" >"$work/mkdocs.yml"
    "$work/venv/bin/mkdocs" build -q -f "$work/mkdocs.yml"
    grep -oE '<script src="https?://[^>]*></script>' "$work/site/index.html" || true
}
found=$(build)
echo "${found:-nothing is loaded from elsewhere}"
if [[ $found != *unpkg.com* || $(build "extra: {polyfills: [own/iframe-worker.js]}") ]]; then
    echo "changed: the plugin loads nothing from another host" >&2
    exit 1
fi
