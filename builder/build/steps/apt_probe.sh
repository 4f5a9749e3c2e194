#!/bin/sh
# Prints what apt_base.py reads, each file after a line with its path.
command -v apt-get > /dev/null && command -v dpkg > /dev/null &&
    printf '\n@@ apt\n'
for file in /etc/os-release /etc/apt/sources.list /etc/apt/sources.list.d/*; do
    [ -f "$file" ] && printf '\n@@ %s\n' "$file" && while IFS= read -r line || [ -n "$line" ]; do
        printf '%s\n' "$line"
    done < "$file"
done
exit 0
