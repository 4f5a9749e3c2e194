# builder: @DIGEST@
@LABELS@

mkdir -p @WORKDIR@ 2> /dev/null
cd @WORKDIR@ && unset OLDPWD || exit 1

if [ -s /etc/rc.local ]; then
    . /etc/rc.local
fi

if [ $# -gt 0 ]; then
    exec @START@
else
    exec @COMMAND@
fi
