#!/bin/sh
# Installs the mounted packages without network.
set -e
export DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true LC_ALL=C.UTF-8
# Packages that make alternatives of manual pages fail without the folders (Debian bug 863199).
for number in 1 2 3 4 5 6 7 8; do mkdir -p /usr/share/man/man$number; done
@ARCHITECTURES@
# policy-rc.d forbids the packages to start daemons (invoke-rc.d(8)); the base's own stays.
policy=/usr/sbin/policy-rc.d
[ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' > $policy; chmod 755 $policy; }
apt-get install -q -y --no-remove --allow-downgrades --allow-change-held-packages \
    -o APT::Sandbox::User=root -o APT::Install-Recommends=false -o Dpkg::Use-Pty=0 \
    -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts=/dev/null @DPKG@ \
    -o DPkg::Options::=--force-confdef -o DPkg::Options::=--force-confold @FOLDER@/debs/*.deb
