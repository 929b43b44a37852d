#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What there is on a host, for dpdk-host.sh, which reads this file: facts from below /sys and /proc, who uses a NIC, and both
# forms of `show`. Changes nothing. Not to be run by itself.
#
# shellcheck disable=SC2154 # ROOT, bold and plain are those of dpdk-host.sh

# ---- what there is ----

value() { # PATH [OTHERWISE]; the first line of a file
	local line=

	{ read -r line <"$ROOT$1"; } 2>/dev/null
	echo "${line:-${2-}}"
}

link_name() { # PATH; what a link leads to, without its folders
	local to

	to=$(readlink "$ROOT$1") && echo "${to##*/}"
}

kib_of() { # MEMINFO FIELD
	awk -v f="$2:" '{ for (i = 1; i < NF; i++) if ($i == f) { print $(i + 1); exit } }' "$ROOT$1" 2>/dev/null
}

size_name() { # KIB
	if (($1 >= 1048576)); then
		echo "$(($1 / 1048576)) GiB"
	elif (($1 >= 1024)); then
		echo "$(($1 / 1024)) MiB"
	else
		echo "$1 KiB"
	fi
}

# CPUs of a list like 0-3,8, one a line.
cpus_of() { # LIST
	local part first last

	for part in ${1//,/ }; do
		first=${part%-*} last=${part#*-}
		for ((; first <= last; first++)); do
			echo "$first"
		done
	done
}

# The same CPUs as a list like 0-3,8.
list_of() { # CPUs on stdin
	sort -nu | awk 'function out() { if (n) r = r (r == "" ? "" : ",") a (a == b ? "" : "-" b) }
		{ if (n && $1 == b + 1) b = $1; else { out(); a = b = $1; n = 1 } } END { out(); print r }'
}

nics() { # PCI addresses of network devices
	local device

	for device in "$ROOT"/sys/bus/pci/devices/*; do
		[[ $(value "${device#"$ROOT"}/class") == 0x02* ]] && echo "${device##*/}"
	done
}

interfaces_of() { # PCI; virtio's are one folder below
	local path

	for path in "$ROOT/sys/bus/pci/devices/$1"/net/* "$ROOT/sys/bus/pci/devices/$1"/virtio*/net/*; do
		echo "${path##*/}"
	done
}

# An interface, and bonds, bridges and VLANs that are made of it.
stack_of() { # INTERFACE
	local upper

	echo "$1"
	for upper in "$ROOT/sys/class/net/$1"/upper_*; do
		stack_of "${upper##*/upper_}"
	done
}

# INTERFACE ADDRESS/PREFIX of all but link-local ones.
addresses=$'\n'
addresses_read() {
	local text

	if [[ -n $ROOT ]]; then
		text=$(cat "$ROOT/ip-address" 2>/dev/null)
	else
		text=$(PATH=$PATH:/usr/sbin:/sbin ip -o address show) || fail "\`ip\` is needed: apt-get install iproute2"
	fi
	addresses=$(awk '($3 == "inet" || $3 == "inet6") && $4 !~ /^fe80:/ { sub(/@.*/, "", $2); print $2, $4 }' <<<"$text")
}

addresses_of() { # INTERFACE
	awk -v i="$1" '$1 == i { print $2 }' <<<"$addresses"
}

has_default() { # INTERFACE
	awk -v i="$1" '$1 == i && $2 == "00000000" && $8 == "00000000" { found = 1 } END { exit !found }' \
		"$ROOT/proc/net/route" 2>/dev/null ||
		awk -v i="$1" '$10 == i && $1 $2 ~ /^0+$/ { found = 1 } END { exit !found }' "$ROOT/proc/net/ipv6_route" 2>/dev/null
}

# Addresses of this host that somebody is logged in over: of the shell above (sudo leaves it no SSH_CONNECTION, so its
# parents are asked), and those of all connections to port 22.
ssh_addresses() {
	local pid=$PPID stat words line hex

	[[ -z ${SSH_CONNECTION-} ]] || awk '{ print $3 }' <<<"$SSH_CONNECTION"
	while [[ $pid -gt 1 && -r $ROOT/proc/$pid/environ ]]; do
		tr '\0' '\n' <"$ROOT/proc/$pid/environ" 2>/dev/null | awk '/^SSH_CONNECTION=/ { print $3 }'
		stat=$(value "/proc/$pid/stat")
		read -ra words <<<"${stat##*) }"
		pid=${words[1]-0}
	done
	while read -r _ line _ stat _; do
		[[ $line == *:0016 && $stat == 01 ]] || continue
		hex=${line%:*}
		[[ ${#hex} == 32 && $hex != 0000000000000000FFFF0000* ]] && hex=
		hex=${hex: -8}
		[[ -z $hex ]] || echo "$((16#${hex:6:2})).$((16#${hex:4:2})).$((16#${hex:2:2})).$((16#${hex:0:2}))"
	done < <(cat "$ROOT/proc/net/tcp" "$ROOT/proc/net/tcp6" 2>/dev/null)
}

# Interfaces that hold an SSH connection over real IPv6: the kernel writes such addresses in two ways.
ssh6_interfaces() {
	local line stat hex word swapped

	while read -r _ line _ stat _; do
		[[ $line == *:0016 && $stat == 01 && ${#line} == 37 ]] || continue
		hex=${line%:*} swapped=
		for word in "${hex:0:8}" "${hex:8:8}" "${hex:16:8}" "${hex:24:8}"; do
			swapped+=${word:6:2}${word:4:2}${word:2:2}${word:0:2}
		done
		awk -v a="${swapped,,}" '$1 == a { print $6 }' "$ROOT/proc/net/if_inet6" 2>/dev/null
	done < <(cat "$ROOT/proc/net/tcp6" 2>/dev/null)
}

# What is lost when a NIC leaves the kernel, a line each; the first words say how bad it is.
ssh_list='' ssh6_list=''
uses_of() { # PCI
	local top interface address

	for top in $(interfaces_of "$1"); do
		for interface in $(stack_of "$top"); do
			[[ $interface == "$top" ]] || echo "$top is part of $interface"
			for address in $(addresses_of "$interface"); do
				if grep -qxF "${address%/*}" <<<"$ssh_list" || grep -qxF "$interface" <<<"$ssh6_list"; then
					echo "SSH connection over $interface ($address): binding it cuts you off"
				else
					echo "$interface has the address $address"
				fi
			done
			! has_default "$interface" || echo "$interface has the default route"
		done
	done
}

# How DPDK 22.11 meets what this kernel driver drives: PMD, how it is bound, steering by UDP port (deploy/dpdk.md).
pmd_of() { # DRIVER
	case $1 in
	mlx5_core) echo "mlx5 kernel flow" ;;
	mlx4_core) echo "mlx4 kernel unread" ;;
	ixgbe) echo "ixgbe vfio flow" ;;
	i40e) echo "i40e vfio flow" ;;
	ice) echo "ice vfio flow" ;;
	iavf) echo "iavf vfio partly" ;;
	bnxt_en) echo "bnxt vfio soft" ;;
	ena) echo "ena vfio soft" ;;
	gve) echo "gve vfio soft" ;;
	vmxnet3) echo "vmxnet3 vfio soft" ;;
	virtio-pci) echo "virtio vfio soft" ;;
	vfio-pci | uio_pci_generic | igb_uio) echo "bound ${1} unread" ;;
	esac
}

iommu_groups() {
	local groups=("$ROOT"/sys/kernel/iommu_groups/*)

	echo ${#groups[@]}
}

noiommu() {
	[[ $(value /sys/module/vfio/parameters/enable_unsafe_noiommu_mode) == [Y1] ]]
}

dpdk_version() {
	local found library

	found=$(awk '/^Package: / { p = $2 } /^Status: / { s = $4 } /^Version: / && p ~ /^librte-eal[0-9]/ && s == "installed" {
		print $2; exit }' "$ROOT/var/lib/dpkg/status" 2>/dev/null)
	for library in "$ROOT"/usr/{,local/}lib{,64}/{,*/}librte_eal.so.+([0-9]); do
		found=${found:-of ABI ${library##*.so.}}
	done
	echo "$found"
}

# ---- show ----

nodes() {
	local path

	for path in "$ROOT"/sys/devices/system/node/node[0-9]*; do
		echo "${path##*/node}"
	done | sort -n
}

page_sizes() { # of a folder hugepages; KiB
	local path

	for path in "$ROOT$1"/hugepages-*kB; do
		path=${path##*-}
		echo "${path%kB}"
	done | sort -n
}

show_host() {
	local node size path total=0 list

	echo "${bold}NUMA nodes and huge pages$plain"
	for node in $(nodes); do
		path=/sys/devices/system/node/node$node
		printf '  node %-3s CPUs %s, %s of %s free\n' "$node" "$(value "$path/cpulist" none)" \
			"$(size_name "$(kib_of "$path/meminfo" MemFree)")" "$(size_name "$(kib_of "$path/meminfo" MemTotal)")"
		for size in $(page_sizes "$path/hugepages"); do
			list=$(value "$path/hugepages/hugepages-${size}kB/nr_hugepages" 0)
			total=$((total + list))
			printf '           pages of %s: %s, %s free\n' "$(size_name "$size")" "$list" \
				"$(value "$path/hugepages/hugepages-${size}kB/free_hugepages" 0)"
		done
	done
	((total)) || echo "  none are reserved: --hugepages 2M:1024 is 2 GiB"
	echo "${bold}Host$plain"
	list=$(awk '$3 == "hugetlbfs" { printf "%s%s (%s)", n++ ? ", " : "", $2, $4 }' "$ROOT/proc/mounts" 2>/dev/null)
	printf '  %-10s %s\n' hugetlbfs "${list:-not mounted; phubd needs no mount}" \
		isolated "CPUs $(value /sys/devices/system/cpu/isolated none), nohz_full $(value /sys/devices/system/cpu/nohz_full none)" \
		IOMMU "$(if (($(iommu_groups))); then
			echo "on, $(iommu_groups) groups"
		elif noiommu; then
			echo "off; vfio works without it, unsafely (enable_unsafe_noiommu_mode)"
		else
			echo "off: NICs that leave the kernel need it; intel_iommu=on iommu=pt on the kernel's command line"
		fi)" \
		memlock "$(memlock) (of this shell)"
	list=$(dpdk_version)
	printf '  %-10s %s\n' DPDK "${list:-not installed: apt-get install dpdk}"
}

memlock() {
	local limit

	limit=$(ulimit -l)
	[[ $limit == unlimited ]] && echo unlimited || echo "$limit KiB"
}

pmd_text() { # DRIVER
	local pmd how steering

	read -r pmd how steering <<<"$(pmd_of "$1")"
	case $how in
	'') echo "DPDK: this driver is not in deploy/dpdk.md" && return ;;
	kernel) echo -n "DPDK: $pmd, stays with the kernel's driver; " ;;
	vfio) echo -n "DPDK: $pmd, needs vfio-pci; " ;;
	*) echo "DPDK may have it" && return ;;
	esac
	case $steering in
	flow) echo "the NIC steers by UDP port" ;;
	partly) echo "the NIC steers by UDP port where its PF lets it" ;;
	soft) echo "cores hand packets over, for want of rte_flow" ;;
	*) echo "steering: see its guide" ;;
	esac
}

queues_of() { # INTERFACE rx|tx
	local found=("$ROOT/sys/class/net/$1/queues/$2"-*)

	echo ${#found[@]}
}

link_of() { # INTERFACE
	[[ $(value "/sys/class/net/$1/carrier" 0) == 1 ]] && echo up || echo down
}

show_nics() {
	local pci driver path interface use speed count=0

	echo "${bold}NICs$plain"
	for pci in $(nics); do
		count=$((count + 1))
		path=/sys/bus/pci/devices/$pci
		driver=$(link_name "$path/driver")
		printf '  %s%s%s  driver %s, node %s, %s:%s, IOMMU group %s\n' "$bold" "$pci" "$plain" "${driver:-none}" \
			"$(value "$path/numa_node" -1)" "$(value "$path/vendor")" "$(value "$path/device")" \
			"$(link_name "$path/iommu_group" || echo none)"
		for interface in $(interfaces_of "$pci"); do
			speed=$(value "/sys/class/net/$interface/speed" -1)
			[[ $speed == -1 ]] && speed= || speed=", $speed Mbit/s"
			printf '    %s: %s%s, MTU %s, %s RX and %s TX queues\n' "$interface" "$(link_of "$interface")" "$speed" \
				"$(value "/sys/class/net/$interface/mtu" -)" "$(queues_of "$interface" rx)" "$(queues_of "$interface" tx)"
		done
		while read -r use; do
			[[ -z $use ]] || echo "    in use: $use"
		done < <(uses_of "$pci")
		[[ -z $driver ]] || echo "    $(pmd_text "$driver")"
	done
	((count)) || echo "  none on PCI"
}

text() { # STRING; as JSON
	local s=${1//\\/\\\\}

	printf '"%s"' "${s//\"/\\\"}"
}

number() { # STRING; null where it is none
	[[ $1 =~ ^-?[0-9]+$ ]] && printf '%s' "$1" || printf null
}

joined() { # lines on stdin
	paste -sd, -
}

json_interface() { # INTERFACE
	printf '{"name":%s,"up":%s,"speed_mbit":%s,"mtu":%s,"rx_queues":%s,"tx_queues":%s,"addresses":[%s],"default_route":%s}\n' \
		"$(text "$1")" "$([[ $(link_of "$1") == up ]] && echo true || echo false)" \
		"$(number "$(value "/sys/class/net/$1/speed" -1)")" "$(number "$(value "/sys/class/net/$1/mtu")")" \
		"$(queues_of "$1" rx)" "$(queues_of "$1" tx)" \
		"$(for a in $(addresses_of "$1"); do text "$a" && echo; done | joined)" \
		"$(has_default "$1" && echo true || echo false)"
}

json_nic() { # PCI
	local path=/sys/bus/pci/devices/$1 uses driver pmd steering

	uses=$(uses_of "$1")
	driver=$(link_name "$path/driver")
	read -r pmd _ steering <<<"$(pmd_of "$driver")"
	printf '{"pci":%s,"driver":%s,"node":%s,"vendor":%s,"device":%s,"iommu_group":%s,"pmd":%s,"steering":%s,"ssh":%s,' \
		"$(text "$1")" "$(text "$driver")" "$(number "$(value "$path/numa_node" -1)")" "$(text "$(value "$path/vendor")")" \
		"$(text "$(value "$path/device")")" "$(number "$(link_name "$path/iommu_group")")" "$(text "$pmd")" \
		"$(text "$steering")" "$([[ $uses == *"SSH connection"* ]] && echo true || echo false)"
	printf '"uses":[%s],"interfaces":[%s]}\n' \
		"$(while read -r u; do [[ -z $u ]] || { text "$u" && echo; }; done <<<"$uses" | joined)" \
		"$(for i in $(interfaces_of "$1"); do json_interface "$i"; done | joined)"
}

json_nodes() {
	local node path size

	for node in $(nodes); do
		path=/sys/devices/system/node/node$node
		printf '{"node":%s,"cpus":%s,"memory_kib":%s,"free_kib":%s,"hugepages":[%s]}\n' "$node" \
			"$(text "$(value "$path/cpulist")")" "$(number "$(kib_of "$path/meminfo" MemTotal)")" \
			"$(number "$(kib_of "$path/meminfo" MemFree)")" \
			"$(for size in $(page_sizes "$path/hugepages"); do
				printf '{"size_kib":%s,"total":%s,"free":%s}\n' "$size" \
					"$(number "$(value "$path/hugepages/hugepages-${size}kB/nr_hugepages")")" \
					"$(number "$(value "$path/hugepages/hugepages-${size}kB/free_hugepages")")"
			done | joined)"
	done
}

show_json() {
	printf '{"nodes":[%s],"hugetlbfs":[%s],"isolated":%s,"nohz_full":%s,"iommu_groups":%s,"noiommu":%s,' \
		"$(json_nodes | joined)" \
		"$(while read -r _ m t _; do [[ $t != hugetlbfs ]] || { text "$m" && echo; }; done \
			< <(cat "$ROOT/proc/mounts" 2>/dev/null) | joined)" \
		"$(text "$(value /sys/devices/system/cpu/isolated)")" "$(text "$(value /sys/devices/system/cpu/nohz_full)")" \
		"$(iommu_groups)" "$(noiommu && echo true || echo false)"
	printf '"memlock_kib":%s,"dpdk":%s,"nics":[%s]}\n' "$(number "$(ulimit -l)")" "$(text "$(dpdk_version)")" \
		"$(for pci in $(nics); do json_nic "$pci"; done | joined)"
}
