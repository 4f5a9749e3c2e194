#!/bin/sh
# Prints the files that apt would install for its arguments, in the form of --print-uris. Exit codes: see
# apt_solve.py. apt runs as root of a namespace without other users; sources and certificates are as the
# mounted folder has them.
here=/run/builder-apt
# whom the base trusts, and whom builder trusts
authorities=/tmp/builder-authorities.pem
cat /etc/ssl/certs/ca-certificates.crt $here/ca.crt >$authorities 2>/dev/null
apt() {
    command=$1; shift
    set -- -q -o APT::Sandbox::User=root -o Acquire::Languages=none "$@"
    [ -d $here/sources.d ] && set -- -o Dir::Etc::SourceList=/dev/null \
        -o Dir::Etc::SourceParts=$here/sources.d "$@"
    [ ! -s $authorities ] || set -- -o Acquire::https::CaInfo=$authorities "$@"
    $command "$@"
}
for package do
    name=${package%%=*}
    case $name in
        *:all|*:any|*:native) ;;
        *:*) dpkg --add-architecture "${name##*:}" ;;
    esac
done
apt apt-get update -o APT::Update::Error-Mode=any >&2 || exit 61
apt apt-get install -qq -y --no-install-recommends --no-remove --allow-downgrades --print-uris \
    -o Acquire::ForceHash=SHA256 "$@" && exit 0
apt apt-get install -s -y --no-install-recommends --no-remove --allow-downgrades "$@"
exit 62
