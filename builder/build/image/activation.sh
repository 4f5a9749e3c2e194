if [ "${BUILDER_ACTIVATED:-}" != "$CONDA_PREFIX" ]; then
    # Activation scripts may be written for bash: it runs them where the image has it. Plain sh leaves out what it cannot parse.
    if [ -z "${BASH_VERSION:-}" ] && command -v bash >/dev/null 2>&1; then
        exec bash @ENTRYPOINT@ "$@"
    fi
    BUILDER_ACTIVATED=$CONDA_PREFIX
    export BUILDER_ACTIVATED
    builder_source() {
        if [ -r "$1" ] && { [ -n "${BASH_VERSION:-}" ] || sh -n "$1" 2>/dev/null; }; then
            . "$1"
        fi
    }
@KEEP@
    for builder_script in @SCRIPTS@; do
        builder_source "$builder_script"
    done
@RESTORE@
fi
