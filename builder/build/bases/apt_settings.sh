#!/bin/sh
# Writes apt's settings into the tree. They can have credentials, so no other user may read them there. They
# come in variables: other users see arguments, and an ordinary user's mmdebstrap reads a file of options as
# a subordinate id, which may not read a private file.
umask 077
printf %s "$_BUILDER_APT_CONF" >"$1/etc/apt/apt.conf.d/99mmdebstrap"
printf %s "$_BUILDER_APT_AUTH" >"$1/etc/apt/auth.conf"
