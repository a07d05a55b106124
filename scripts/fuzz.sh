#!/usr/bin/env bash
# Fuzzes codec, engine, topics, patterns, fields, rules and the stored log for so many seconds in all (default 60): scripts/fuzz.sh [SECONDS] [TARGET...]
#
# Needs only cargo and a C++ compiler (for libFuzzer, which comes as source with its crate); no nightly toolchain and no
# sanitizer: the engine has no unsafe code that one would watch. What was learnt is kept in target/fuzz/corpus. A finding
# ends with status 1 and leaves its input in target/fuzz/artifacts; put it below tests/corpus to make it a test.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
shift || true
case $seconds in *[!0-9]* | "") echo "usage: scripts/fuzz.sh [SECONDS] [TARGET...]" >&2; exit 2 ;; esac
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(engine_feed link_feed session_feed topics patterns fields rules record index)
command -v cargo >/dev/null || { echo "fuzzing needs cargo: install the Rust toolchain" >&2; exit 2; }
command -v c++ >/dev/null || command -v g++ >/dev/null || { echo "fuzzing needs a C++ compiler, for libFuzzer" >&2; exit 2; }

work=target/fuzz
mkdir -p "$work/artifacts"
python=python3
[ -x .venv/bin/python ] && python=.venv/bin/python
"$python" crates/fuzz/seeds.py "$work/seeds"

# The flags that cargo-fuzz would give with `--sanitizer none`: coverage for libFuzzer, assertions on.
flags="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
host=$(rustc -vV | sed -n 's/^host: //p')
echo "building the fuzz targets"
# With --target the flags don't reach build scripts, which must not be instrumented.
RUSTFLAGS="$flags" cargo build --quiet --release --locked --manifest-path crates/fuzz/Cargo.toml \
	--target "$host" --target-dir "$work/build"

share=$((seconds / ${#targets[@]}))
[ "$share" -gt 0 ] || share=1
runs=0
found=0
for target in "${targets[@]}"; do
	mkdir -p "$work/corpus/$target" "tests/corpus/$target"
	log="$work/$target.log"
	status=0
	"$work/build/$host/release/$target" "$work/corpus/$target" "$work/seeds/$target" "tests/corpus/$target" \
		-max_total_time="$share" -timeout=10 -rss_limit_mb=2048 -max_len=4096 -print_final_stats=1 \
		-artifact_prefix="$work/artifacts/$target-" >"$log" 2>&1 || status=$?
	done_runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -n 1)
	cover=$(grep -o 'cov: [0-9]*' "$log" | tail -n 1 || true)
	echo "$target: ${done_runs:-0} runs in $share s, ${cover:-no coverage}, status $status"
	runs=$((runs + ${done_runs:-0}))
	if [ "$status" -ne 0 ]; then
		found=$((found + 1))
		grep -E 'panicked at|SUMMARY|ERROR|Test unit written' -A 3 "$log" | head -n 20 || tail -n 20 "$log"
	fi
done
echo "total: $runs runs of ${#targets[@]} targets, $found with findings"
[ "$found" -eq 0 ]
