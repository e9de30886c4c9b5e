#!/bin/sh
# Runs what `cargo xtask gpu-bundle` packed, on a machine with a GPU and no toolchain.
#   run.sh tests [filter]              the whole suite; a missing GPU is a failure
#   run.sh sanitizer [tool] [filter]   the suite under compute-sanitizer: memcheck, racecheck, initcheck, synccheck
#   run.sh sanitizers [tools]          every test of its own under each tool, in parallel; goes on where sanitized.csv ends
#   run.sh faults                      the tests of each kernel with a fault: do they find it? (`gpu-bundle --faults`)
#   run.sh doctests                    the examples in the documentation (`gpu-bundle --doctests`)
#   run.sh bench [arguments]           the benches
#   run.sh pytest [arguments]          the tests of the Python package with PyTorch, where the bundle has them
#   run.sh record [folder] [seconds] [arguments]   every operation, part by part; goes on where it ended
#   run.sh all                         tests, memcheck, racecheck, bench
here=$(cd "$(dirname "$0")" && pwd)
cd "$here" || exit 1
# Programs and data come packed; Python unpacks where there is no xz.
if [ -f bundle.tar.xz ]; then
    tar -xJf bundle.tar.xz 2>/dev/null ||
        python3 -c 'import tarfile; tarfile.open("bundle.tar.xz").extractall(".")' || exit 1
    rm bundle.tar.xz
fi
export EINSPARSE_REQUIRE_GPU=1 EINSPARSE_DATA="$here/data"
# Kernels of other GPUs as machine code, for EINSPARSE_ARCH.
[ -d cubins ] && export EINSPARSE_CUBINS="$here/cubins"
# A bundle of one module has no other kernels.
[ -f module ] && EINSPARSE_TEST_ONLY=$(cat module) && export EINSPARSE_TEST_ONLY
# Tests that read the source tree or compile kernels have neither here, and skip.
export EINSPARSE_BUNDLE=1

tests() {
    peers
    failed=0
    # The whole suite has to run every kernel.
    if [ $# -eq 0 ] && [ ! -f module ]; then
        EINSPARSE_TEST_ROWS="$here/rows-ran" && export EINSPARSE_TEST_ROWS
        rm -f rows-ran
    fi
    for program in tests/*; do
        echo "== $program"
        "./$program" "$@" || failed=1
    done
    if [ -f rows-ran ]; then
        unset EINSPARSE_TEST_ROWS
        EINSPARSE_TEST_ROWS_RAN="$here/rows-ran" tests/device coverage --nocapture || failed=1
        rm rows-ran
    fi
    return $failed
}

doctests() {
    failed=0
    for program in doctests/*; do
        echo "== $program"
        "./$program" || failed=1
    done
    return $failed
}

sanitizer() {
    tool=${1:-memcheck}
    [ $# -gt 0 ] && shift
    program=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
    failed=0
    for test in tests/*; do
        echo "== $tool $test"
        "$program" --tool "$tool" --error-exitcode 9 "./$test" --test-threads=1 "$@" || failed=1
    done
    return $failed
}

# One fault: name, module, test, and the architecture whose kernels are to run, - for the GPU's own.
fault() {
    [ "$4" != - ] && export EINSPARSE_ARCH="$4"
    # A whole name, or the beginning of several.
    exact=--exact
    [ "${3%::}" != "$3" ] && exact=
    if EINSPARSE_TEST_ONLY="$2" EINSPARSE_TEST_MODULE="$2:faults/$1.cubin" \
        timeout 200 tests/device "$3" $exact >"faults/$1.log" 2>&1; then
        echo "$1 in $2: not found by $3"
    elif grep -q "No such file\|cuModule" "faults/$1.log"; then
        echo "$1 in $2: not loaded"
    elif grep -q "panicked" "faults/$1.log"; then
        echo "$1 in $2: found"
    else
        echo "$1 in $2: no outcome of $3"
    fi
}

faults() {
    xargs -P 8 -n 4 ./run.sh fault <faults/list | tee faults/outcome
    found=$(grep -c ": found" faults/outcome)
    echo "$found of $(wc -l <faults/list) faults found"
    [ "$found" -eq "$(wc -l <faults/list)" ]
}

# One test under one tool; a line of tool, test, outcome and seconds.
sanitize() {
    program=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
    start=$(date +%s)
    timeout 1800 "$program" --tool "$1" --error-exitcode 9 tests/device "$2" --exact >"sanitized/$1-$2.log" 2>&1
    code=$?
    if grep -q "before first instrumented API call" "sanitized/$1-$2.log"; then
        outcome="no GPU"
    elif [ $code -eq 0 ]; then
        outcome=clean
    elif [ $code -eq 124 ]; then
        outcome=unended
    elif [ $code -eq 9 ]; then
        outcome="errors $(sed -n 's/.*SUMMARY: \([0-9]*\).*/\1/p' "sanitized/$1-$2.log" | tail -1)"
    else
        outcome=failed
    fi
    echo "$1,$2,$outcome,$(($(date +%s) - start))"
}

sanitizers() {
    export EINSPARSE_TEST_SMALL=1
    mkdir -p sanitized
    touch sanitized.csv
    for tool in ${*:-memcheck synccheck racecheck initcheck}; do
        # Not the one whose kernel has a wild address.
        tests/device --list 2>/dev/null | sed -n 's/: test$//p' | grep -v "on_the_cpu\|a_lost_gpu" | while read -r test; do
            grep -q "^$tool,$test,[^u]" sanitized.csv || echo "$tool $test"
        done
    done | xargs -P 14 -n 2 ./run.sh sanitize | tee -a sanitized.csv
    ! cut -d, -f3 sanitized.csv | grep -qv "clean\|no GPU"
}

# Where the peers' libraries are when the loader does not find them by itself (a CUDA toolkit, a Python environment), and the
# commit that rows name.
peers() {
    for folder in /usr/local/cuda/lib64 $(python3 -c 'import site
for s in site.getsitepackages(): print(s)' 2>/dev/null | sed 's|$|/nvidia/*/lib|'); do
        [ -d "$folder" ] && LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder"
    done
    export LD_LIBRARY_PATH
    [ -f commit ] && EINSPARSE_COMMIT=$(cat commit) && export EINSPARSE_COMMIT
}

bench() {
    peers
    failed=0
    for program in bench-*; do
        [ -x "$program" ] || continue
        echo "== $program"
        "./$program" --bench "$@" || failed=1
    done
    return $failed
}

pytest() {
    PYTHONPATH="$here/python" python3 -m pytest -rs -s "$@" python/tests
}

record() {
    peers
    folder=${1:-record} seconds=${2:-86400}
    [ $# -gt 1 ] && shift
    [ $# -gt 0 ] && shift
    ./bench-gpu --bench --record "$folder" --seconds "$seconds" "$@"
}

part=${1:-all}
[ $# -gt 0 ] && shift
case $part in
tests | doctests | sanitizer | sanitizers | sanitize | faults | fault | bench | pytest | record) "$part" "$@" ;;
all)
    failed=0
    tests || failed=1
    sanitizer memcheck || failed=1
    sanitizer racecheck || failed=1
    bench || failed=1
    exit $failed
    ;;
*)
    sed -n 's/^#   //p' "$0"
    exit 2
    ;;
esac
