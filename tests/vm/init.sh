#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# First process of the guest, in the initial file system that run.sh packs: loads modules, mounts the machine's root file
# system under an overlay that is thrown away, and goes on there as guest.sh. The kernel's command line carries vm.NAME=VALUE.
box=/bin/busybox
uml='' control='' kernel='' release=''

$box mount -t proc proc /proc
$box mount -t sysfs sys /sys
$box mount -t devtmpfs dev /dev
for word in $($box cat /proc/cmdline); do
	case $word in
	vm.uml=*) uml=${word#*=} ;;
	vm.control=*) control=${word#*=} ;;
	vm.kernel=*) kernel=${word#*=} ;;
	vm.release=*) release=${word#*=} ;;
	esac
done

die() { # WORD...
	echo "vm: $*" >/dev/kmsg
	$box poweroff -f
}

share() { # TAG PATH MODE CACHE DIR: the machine's PATH at DIR
	if [ -n "$uml" ]; then
		$box mount -t hostfs -o "$3,$2" none "$5"
	else
		$box mount -t 9p -o "$3,trans=virtio,version=9p2000.L,msize=512000,cache=$4" "$1" "$5"
	fi || die "cannot mount $2"
}

if [ -e /modules/order ]; then
	while read -r module; do
		$box insmod "/modules/$module" || echo "vm: insmod $module failed" >/dev/kmsg
	done </modules/order
fi
share root / ro loose /ro
$box mount -t tmpfs -o mode=755 tmpfs /rw
$box mkdir /rw/upper /rw/work
$box mount -t overlay -o lowerdir=/ro,upperdir=/rw/upper,workdir=/rw/work overlay /new || die "cannot mount the overlay"
cd /new || die "no /new"
$box mount -t proc proc proc
$box mount -t sysfs sys sys
$box mount -t devtmpfs dev dev
$box mkdir -p dev/pts dev/shm
$box mount -t devpts devpts dev/pts
$box mount -t tmpfs -o mode=1777 shm dev/shm
$box mount -t tmpfs -o mode=755 run run
$box mkdir -p run/vm run/netns run/lock
[ -e dev/fd ] || $box ln -s /proc/self/fd dev/fd
[ -e dev/stdin ] || $box ln -s fd/0 dev/stdin
[ -e dev/stdout ] || $box ln -s fd/1 dev/stdout
[ -e dev/stderr ] || $box ln -s fd/2 dev/stderr
share control "$control" rw none run/vm
if [ -n "$kernel" ]; then
	$box mkdir -p "lib/modules/$release"
	$box mount --bind "/ro$kernel/lib/modules/$release" "lib/modules/$release"
fi
while read -r tag path; do
	$box mkdir -p "./$path"
	share "$tag" "$path" rw mmap "/new$path"
done <run/vm/shares
# This process itself moves there, so that the kernel finds modprobe in the new root.
cd / || die "no /"
exec $box switch_root /new /bin/bash /run/vm/guest.sh </dev/null >/new/dev/kmsg 2>&1
