#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs the Debian packages that are missing; when none is, one dpkg-query is all it does.
#
# Usage: deploy/deps.sh [build] [test] [vm] [lint] [fuzz] [demo] [bench] [--list]     without a group: all of them
#        --list prints the packages and installs nothing
#
# shellcheck disable=SC2086 # lists of packages are split into words on purpose
set -eu

build="make gcc libc6-dev binutils pkg-config libssl-dev libprotobuf-c-dev protobuf-c-compiler libyaml-dev
	libjansson-dev libcap-ng-dev libibverbs-dev libisal-dev libipsec-mb-dev libdpdk-dev
	libcurl4-openssl-dev"
test="ccache lld libcmocka-dev zlib1g-dev iproute2 procps python3 python3-numpy python3-torch python3-pip python3-setuptools python3-wheel
	dataset-fashion-mnist gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static systemd valgrind openmpi-bin libopenmpi-dev mpich
	slurmctld slurmd slurm-client munge etcd-server libcurl4 librsvg2-bin"
vm="make gcc patch flex bison bc xz-utils cpio kmod busybox-static iproute2 qemu-system-x86 python3 ibverbs-utils
	ibverbs-providers"
lint="ccache python3 clang-format-14 cppcheck shellcheck libcmocka-dev yamllint python3-yaml"
fuzz="ccache lld clang libclang-rt-14-dev"
demo="python3 python3-numpy python3-torch python3-matplotlib dataset-fashion-mnist"
bench="zlib1g-dev dataset-fashion-mnist openmpi-bin libopenmpi-dev python3 python3-torch python3-matplotlib iproute2 dpdk-dev"

packages=
list=
for word in "$@"; do
	case $word in
	build) packages="$packages $build" ;;
	test) packages="$packages $test" ;;
	vm) packages="$packages $vm" ;;
	lint) packages="$packages $lint" ;;
	fuzz) packages="$packages $fuzz" ;;
	demo) packages="$packages $demo" ;;
	bench) packages="$packages $bench" ;;
	--list) list=yes ;;
	*)
		echo "deps.sh: unknown group \"$word\": use build, test, vm, lint, fuzz, demo, bench" >&2
		exit 2
		;;
	esac
done
[ -n "$packages" ] || packages="$build $test $vm $lint $fuzz $demo $bench"
packages=$(printf '%s\n' $packages | sort -u)

if [ -n "$list" ]; then
	echo "$packages"
	exit 0
fi

if ! command -v dpkg-query >/dev/null; then
	echo "deps.sh: this is not Debian or Ubuntu; what these packages hold is assumed to be there:" $packages >&2
	exit 0
fi

missing=$({
	dpkg-query -W -f '${db:Status-Status} ${Package}\n' $packages 2>/dev/null || true
	printf 'wanted %s\n' $packages
} | awk '$1 == "installed" { have[$2] } $1 == "wanted" && !($2 in have) { print $2 }')
[ -n "$missing" ] || exit 0

as_root=
if [ "$(id -u)" -ne 0 ]; then
	as_root=sudo
	if ! command -v sudo >/dev/null; then
		echo "deps.sh: this needs root, and there is no sudo. As root: apt-get install" $missing >&2
		exit 1
	fi
fi

echo "deps.sh: installing" $missing >&2
# Waits for another apt to finish instead of failing at once.
apt="env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=600"
if ! { $as_root $apt update && $as_root $apt install --no-install-recommends $missing; } >&2 </dev/null; then
	echo "deps.sh: apt-get failed (its reason is above). It needs a network and a Debian or Ubuntu archive; see" \
		"/etc/apt/sources.list. Wanted:" $missing >&2
	exit 1
fi
