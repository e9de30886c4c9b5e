#!/bin/sh
# Runs what `cargo xtask gpu-bundle` packed, on a machine with a GPU and no toolchain.
#   run.sh tests [filter]              the whole suite; a missing GPU is a failure
#   run.sh sanitizer [tool] [filter]   the suite under compute-sanitizer: memcheck, racecheck, initcheck, synccheck
#   run.sh faults                      the tests of each kernel with a fault: do they find it? (`gpu-bundle --faults`)
#   run.sh bench [arguments]           the benches
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
# A bundle of one family has no other kernels.
[ -f family ] && EINSPARSE_TEST_FAMILY=$(cat family) && export EINSPARSE_TEST_FAMILY
# Tests that read the source tree or compile kernels have neither here, and skip.
export EINSPARSE_BUNDLE=1

tests() {
    failed=0
    # The whole suite has to run every kernel.
    if [ $# -eq 0 ] && [ ! -f family ]; then
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

faults() {
    failed=0
    found=0
    while read -r name family filter; do
        if EINSPARSE_TEST_FAMILY="$family" EINSPARSE_TEST_MODULE="$family:faults/$name.cubin" \
            timeout 120 tests/device "$filter" --exact >"faults/$name.log" 2>&1; then
            echo "not found: $name in $family by $filter"
            failed=1
        elif grep -q "panicked\|CUDA" "faults/$name.log"; then
            found=$((found + 1))
        else
            echo "no outcome: $name in $family by $filter"
            failed=1
        fi
    done <faults/list
    echo "$found of $(wc -l <faults/list) faults found"
    return $failed
}

bench() {
    failed=0
    # The peers' libraries, where the loader does not find them by itself: a CUDA toolkit, or a Python environment's.
    for folder in /usr/local/cuda/lib64 $(python3 -c 'import site
for s in site.getsitepackages(): print(s)' 2>/dev/null | sed 's|$|/nvidia/*/lib|'); do
        [ -d "$folder" ] && LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder"
    done
    export LD_LIBRARY_PATH
    [ -f commit ] && EINSPARSE_COMMIT=$(cat commit) && export EINSPARSE_COMMIT
    for program in bench-*; do
        [ -x "$program" ] || continue
        echo "== $program"
        "./$program" --bench "$@" || failed=1
    done
    return $failed
}

part=${1:-all}
[ $# -gt 0 ] && shift
case $part in
tests | sanitizer | faults | bench) "$part" "$@" ;;
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
