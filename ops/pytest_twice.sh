# Sourced by ops/test: pytest, and once more for the few tests that failed.
#
# Hundreds of tests with real processes, three at a time: on a busy machine one of them may fail by
# bad luck, and a run takes long. What fails has a second chance, alone; what fails again has failed.

# Sets $alone to the tests that passed only then; they are worth a look. More failures than this
# are no bad luck, and neither is a pytest that was interrupted or could not collect its tests.
most_again=10
alone=""

# pytest_twice ARGUMENTS...: returns the exit code of pytest, 0 if everything passed in the end.
pytest_twice() {
    cache=$(mktemp -d) || return 1
    code=0
    _pytest_twice "$@" || code=$?
    rm -rf "$cache"
    return "$code"
}

_pytest_twice() {
    code=0
    pytest "$@" -o cache_dir="$cache" || code=$?
    [ "$code" -eq 1 ] || return "$code"
    _failed >"$cache/first" || return 1
    count=$(wc -l <"$cache/first")
    # A file among the tests: it could not be collected, for which -n has no exit code of its own.
    if [ "$count" -eq 0 ] || [ "$count" -gt "$most_again" ] || grep -qv :: "$cache/first"; then
        return 1
    fi
    say "$((count)) failed: once more, alone"
    code=0
    pytest "$@" -o cache_dir="$cache" -n 0 --last-failed || code=$?
    # Nothing was run, or not to its end: who would have passed?
    [ "$code" -le 1 ] || return "$code"
    _failed >"$cache/again" || return 1
    alone=$(grep -vxFf "$cache/again" "$cache/first" | paste -sd '|' - | sed 's/|/, /g')
    return "$code"
}

# The tests that failed in the last run, one per line.
_failed() {
    python -c 'import json, sys; print(*json.load(open(sys.argv[1])), sep="\n", end="\n")' \
        "$cache/v/cache/lastfailed" | sed "/^\$/d" | sort
}
