#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# In the guest, after init.sh: network, RDMA devices, then the command; its exit status goes to the file "status". run.sh
# left in /run/vm what this reads.
# shellcheck disable=SC1091
control=/run/vm
uml='' directory=/ memlock=unlimited addresses=0 nodes=0 mtu=4200 cable='' setup=''
. $control/settings

port() { # NAME
	local port

	for port in /sys/class/virtio-ports/*; do
		[[ $(cat "$port/name") != "$1" ]] || echo "/dev/${port##*/}"
	done
}

# Two character devices apart from the kernel's messages carry what the command prints, byte by byte.
if [[ -n $uml ]]; then
	for tty in /dev/tty1 /dev/tty2; do
		stty raw -echo <$tty
	done
	exec >/dev/tty1 2>/dev/tty2
else
	exec >"$(port out)" 2>"$(port err)"
fi

# One device and several addresses, each a GID: packets between them take rxe's own short cut. A fixed MAC address makes
# GIDs the same in every run.
one_device() { # COUNT
	local i

	[[ -e /sys/class/net/dummy0 ]] || ip link add dummy0 type dummy
	ip link set dummy0 address 02:00:00:00:00:01 mtu "$mtu" up
	for ((i = 1; i <= $1; i++)); do
		echo "addr add 10.77.0.$i/24 dev dummy0"
	done | ip -batch -
	rdma link add rxe0 type rxe netdev dummy0
}

# Devices node1..nodeN on Ethernet devices n1..nN, plugged by b1..bN into bridge br0. rdma_rxe takes packets in the first
# network namespace only, and those between two addresses of one machine short-cut through lo, where rxe does not look.
# So rules send a packet whose source is node I's out of nI and ask for local addresses only then: packets do cross the
# bridge, and `tc qdisc add dev b2 root netem loss 1%` loses what node2 would receive.
many_devices() { # COUNT
	local i scope

	for scope in all default; do
		echo 1 >/proc/sys/net/ipv4/conf/$scope/accept_local
		echo 0 >/proc/sys/net/ipv4/conf/$scope/rp_filter
		echo 1 >/proc/sys/net/ipv4/conf/$scope/arp_ignore
		echo 2 >/proc/sys/net/ipv4/conf/$scope/arp_announce
	done
	{
		echo "link add br0 mtu $mtu type bridge"
		echo "link set br0 up"
		echo "rule add pref 1000 lookup local"
		for ((i = 1; i <= $1; i++)); do
			printf 'link add n%d address 02:00:00:00:01:%02x mtu %d type veth peer name b%d mtu %d\n' $i $i "$mtu" $i "$mtu"
			echo "link set b$i master br0 up"
			echo "link set n$i up"
			echo "addr add 10.81.0.$i/24 dev n$i"
			echo "route add 10.81.0.0/24 dev n$i src 10.81.0.$i table $((1000 + i))"
			echo "rule add pref 5 from 10.81.0.$i to 10.81.0.$i lookup local"
			echo "rule add pref 10 iif lo from 10.81.0.$i lookup $((1000 + i))"
		done
		echo "rule del pref 0"
	} | ip -batch -
	for ((i = 1; i <= $1; i++)); do
		rdma link add "node$i" type rxe netdev "n$i"
	done
}

ip link set lo up
if [[ -n $cable ]]; then
	ip link set eth0 mtu "$mtu" up
	[[ $cable != *:* ]] || echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad # an IPv6 address is there at once
	ip addr add "$cable" dev eth0
	rdma link add rxe0 type rxe netdev eth0
elif ((nodes > 0)); then
	many_devices "$nodes"
elif ((addresses > 0)); then
	one_device "$addresses"
fi
# shellcheck disable=SC1090
[[ -z $setup ]] || . "$setup"
(
	ulimit -l "$memlock"
	cd "$directory" || exit 125
	set -a
	. $control/environment
	set +a
	. $control/command
)
echo $? >$control/status
sync
/bin/busybox poweroff -f
