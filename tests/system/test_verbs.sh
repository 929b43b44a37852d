#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What everything over verbs stands on: the RDMA devices of this machine, or of a virtual one, talk to each other, by reliable
# connections and shared receive queues. Speaks TAP. What gets lost is test_verbs_faults.py's: ibv_rc_pingpong itself stands
# still for good now and then when a packet of its is lost (2 runs of 14 on a busy machine), whose sides end without each other.
# vm: -w 5
set -u

mapfile -t devices < <(grep -ls ACTIVE /sys/class/infiniband/*/ports/1/state | cut -d/ -f5)
((${#devices[@]})) || { echo "no RDMA device here"; exit 77; }
first=${devices[0]} last=${devices[-1]}
number=0
echo "# ${#devices[@]} devices: ${devices[*]}"

report() { # STATUS NAME
	((++number))
	if (($1 == 0)); then
		echo "ok $number - $2"
	else
		echo "not ok $number - $2"
	fi
}

# RoCE v2 over IPv4 is what a network of today routes; it is not the first entry.
gid() { # DEVICE
	local port=/sys/class/infiniband/$1/ports/1 entry

	for entry in "$port"/gids/*; do
		if [[ $(<"$entry") == 0000:0000:0000:0000:0000:ffff:* && $(<"$port/gid_attrs/types/${entry##*/}") == *v2* ]]; then
			echo "${entry##*/}"
			return
		fi
	done
	echo 0
}

# The two sides find each other by TCP over loopback. Sleeping on events (-e), as both may share one CPU.
pingpong() { # KIND ITERATIONS [OPTION]
	local server client tries

	timeout 60 "ibv_$1_pingpong" "${@:3}" -d "$first" -g "$(gid "$first")" -n "$2" >/dev/null &
	server=$!
	for ((tries = 0; tries < 50; tries++)); do
		ss -Hltn 'sport = :18515' | grep -q . && break
		sleep 0.1
	done
	timeout 60 "ibv_$1_pingpong" "${@:3}" -d "$last" -g "$(gid "$last")" -n "$2" 127.0.0.1 | tail -n 1
	client=${PIPESTATUS[0]}
	((client == 0)) || kill $server 2>/dev/null
	wait $server && ((client == 0))
}

for kind in rc srq; do
	pingpong $kind 500 -e
	report $? "ibv_${kind}_pingpong from $last to $first"
done

echo "1..$number"
