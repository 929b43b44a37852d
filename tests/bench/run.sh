#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The quick look at speed, in under ten minutes on two cores: kernels beside the machine's roofline, and exchanges over shared
# memory and tcp, five runs of each, with the medians and the spread. Writes $BUILD/bench.md, and the JSON lines
# beside it. A wrong sum or a kernel above its roofline fails.
set -u
cd "$(dirname "$0")/../.." || exit 1
BUILD=${BUILD:-build}
RUNS=${RUNS:-5}
OUT=$BUILD/bench.md
LINES=$BUILD/bench.jsonl
phub=$BUILD/phub
status=0

[[ -x $phub && -x $BUILD/phubd ]] || { echo "no phub and phubd in $BUILD: run make" >&2; exit 1; }

# shellcheck disable=SC2016 # the quotes are markdown's
MEDIANS='
import json, statistics, sys
runs = [json.loads(line) for line in sys.stdin if line.strip()]
if not runs:
    sys.exit("no run succeeded: " + sys.argv[1])
keys = ["rounds_per_s", "p50_ms", "p99_ms", "gb_per_s_worker", "box_cpu_s_per_gb"]
rate, p50, p99, gb, cpu = (statistics.median(run[key] for run in runs) for key in keys)
rates = [run["rounds_per_s"] for run in runs]
print("| `%s` | %.1f (%.1f to %.1f) | %.3f | %.3f | %.3f | %.3f |"
      % (sys.argv[1], rate, min(rates), max(rates), p50, p99, gb, cpu))
'

# One table row: the medians of RUNS runs, and the smallest and largest rate.
exchange() { # ARGUMENT...
	local i line runs=()

	for ((i = 0; i < RUNS; i++)); do
		line=$("$phub" bench exchange "$@" --json) || { status=1; continue; }
		echo "$line" >>"$LINES"
		runs+=("$line")
	done
	printf '%s\n' "${runs[@]}" | python3 -c "$MEDIANS" "$*" >>"$OUT" || status=1
}

{
	echo "# Measured here"
	echo
	echo "$(nproc) CPUs ($(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1)), $(uname -r)," \
		"congestion control $(cat /proc/sys/net/ipv4/tcp_congestion_control) (phub: cubic), load" \
		"$(cut -d' ' -f1 /proc/loadavg) at the start. Made by tests/bench/run.sh."
	echo
	echo "## phub bench exchange ..."
	echo
	echo "Medians of $RUNS runs, and the range of the rates. GB/s: per worker, each way. CPU: of the box, s per GB."
	echo
	echo "| arguments | rounds/s | p50 ms | p99 ms | GB/s | CPU |"
	echo "|---|---|---|---|---|---|"
} >"$OUT" || exit 1
: >"$LINES"

for mode in zero-copy copy; do
	exchange --transport shm --mode $mode --workers 4 --bytes 100MB --rounds 20
	exchange --transport tcp --mode $mode --workers 4 --bytes 100MB --rounds 5
done
for bytes in 4KB 64KB; do
	for workers in 2 4; do
		exchange --transport shm --workers $workers --bytes $bytes --rounds 5000
		exchange --transport tcp --workers $workers --bytes $bytes --rounds 2000
	done
done
exchange --transport shm --workers 4 --model resnet-50 --optimizer nesterov --rounds 10
exchange --transport shm --workers 4 --bytes 10MB --rounds 100
exchange --transport shm --workers 4 --bytes 10240000 --keys 10000 --rounds 100

{
	echo
	echo "## phub bench kernels --quick"
	echo
	echo '```'
} >>"$OUT"
"$phub" bench kernels --quick >>"$OUT" || status=1
echo '```' >>"$OUT"
echo "written to $OUT"
exit $status
