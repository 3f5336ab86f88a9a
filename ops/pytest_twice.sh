# Sourced by ops/test: pytest, and once more for the few tests that failed.
#
# Hundreds of tests with real processes, six at a time: on a busy machine one of them may fail by
# bad luck, and a run takes long. What fails has a second chance, alone; what fails again has failed.

# Sets $alone to the tests that passed only then; they are worth a look, and $second_tries keeps
# them, each with the failure of its first try. More failures than this are no bad luck, and neither
# is a pytest that was interrupted or could not collect its tests.
most_again=10
alone=""
second_tries=build/second-tries.txt

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
    pytest "$@" -o cache_dir="$cache" --junitxml="$cache/first.xml" || code=$?
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
    grep -vxFf "$cache/again" "$cache/first" >"$cache/alone" || return "$code"
    alone=$(paste -sd '|' - <"$cache/alone" | sed 's/|/, /g')
    _keep || say "$second_tries could not be written"
    return "$code"
}

# Appends the tests that passed only alone: date, commit and load of the machine, test, failure.
_keep() {
    mkdir -p "$(dirname "$second_tries")" || return 1
    commit=$(git rev-parse --short HEAD 2>/dev/null) || commit=unknown
    python - "$cache/first.xml" "$cache/alone" "$commit" >>"$second_tries" <<'PYTHON'
import os, sys, time
from xml.etree import ElementTree

report, alone, commit = sys.argv[1:]
failures = {}
for case in ElementTree.parse(report).iter("testcase"):
    for kind in ("failure", "error"):
        for failure in case.iter(kind):
            name = f"{case.get('classname')}.{case.get('name')}"
            failures[name] = failure.text or failure.get("message") or ""
when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
for test in open(alone).read().splitlines():
    print(f"{when} commit {commit} load {os.getloadavg()[0]:.1f}: {test}")
    path, _, name = test.partition("::")
    module = path.removesuffix(".py").replace("/", ".")
    text = failures.get(f"{module}.{name.replace('::', '.')}")
    for line in (text or "no failure was reported: did its process end?").splitlines():
        print("    " + line)
PYTHON
}

# The tests that failed in the last run, one per line.
_failed() {
    python -c 'import json, sys; print(*json.load(open(sys.argv[1])), sep="\n", end="\n")' \
        "$cache/v/cache/lastfailed" | sed "/^\$/d" | sort
}
