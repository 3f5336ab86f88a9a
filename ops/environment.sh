# Shared by ops/run and ops/test: the virtual environment `.venv` at the root of the tree.
# To be sourced, with $root set. Plain POSIX shell; needs Python 3.11+ and nothing else.

venv="$root/.venv"

# Bytecode is kept even where the caller's environment says otherwise, as in many containers: every
# process of a broker would compile hundreds of modules whenever it starts.
unset PYTHONDONTWRITEBYTECODE

say() {
    printf 'moldau: %s\n' "$*" >&2
}

fail() {
    say "$@"
    exit 1
}

# The first Python 3.11+ that can create virtual environments; $PYTHON overrides the search.
find_python() {
    found=""
    for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3 python3.14}; do
        command -v "$candidate" >/dev/null 2>&1 || continue
        "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
        found="$candidate"
        # Debian and Ubuntu ship the module apart from Python itself.
        "$candidate" -c 'import ensurepip, venv' 2>/dev/null && return 0
    done
    if [ -n "$found" ]; then
        version=$("$found" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        fail "$found cannot create virtual environments; install the missing module: apt-get install python$version-venv"
    fi
    fail "Python 3.11 or newer is needed: install it with your package manager (or set PYTHON to its path)"
}

# What an installation depends on: when it changes, the next start reinstalls.
fingerprint() {
    { printf '%s\n' "$root"; cat "$root/pyproject.toml"; } | cksum
}

is_installed() {
    [ -x "$venv/bin/moldau" ] && [ "$(cat "$venv/.moldau-$1" 2>/dev/null)" = "$(fingerprint)" ]
}

# install NAME REQUIREMENT: install into the environment unless NAME is installed and up to date.
install() {
    is_installed "$1" && return 0
    if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        find_python
        say "creating a virtual environment in $venv"
        "$found" -m venv --clear "$venv" || fail "no virtual environment could be created in $venv"
    fi
    say "installing Moldau into $venv (again only when pyproject.toml changes)"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable "$2" ||
        fail "installation failed; the message is above"
    # For `.venv/bin/moldau` too. The tree may be read-only: then it only takes longer to start.
    "$venv/bin/python" -m compileall -q "$root/broker" "$root/router" "$root/ops" >/dev/null || :
    fingerprint >"$venv/.moldau-$1"
}
