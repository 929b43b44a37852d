#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What the scripts of this folder share: where kernels are kept, and how one is made once, however many start at the same
# time. Sourced, not run.

# One folder per kernel; safe to remove at any time, and what a CI system may keep from run to run.
VM_CACHE=${PHUB_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/phub-vm}

# 77: this machine cannot have it (no package, no network, another processor); 125: it broke.
die() { # STATUS WORD...
	local status=$1

	shift
	echo "vm: $*" >&2
	exit "$status"
}

need() { # COMMAND...
	local command

	for command in "$@"; do
		command -v "$command" >/dev/null || die 77 "no $command: run deploy/deps.sh vm"
	done
}

# Prints the folder NAME of the cache. If there is none, MAKE fills the empty folder that it is called in, then that gets
# the name: what is interrupted leaves nothing that looks whole. A second caller waits for the first.
cached() { # NAME MAKE
	local name=$1 make=$2 lock

	if [[ ! -d $VM_CACHE/$name ]]; then
		mkdir -p "$VM_CACHE" || die 77 "no folder $VM_CACHE: set PHUB_VM_CACHE"
		exec {lock}>"$VM_CACHE/$name.lock"
		flock "$lock"
	fi
	if [[ ! -d $VM_CACHE/$name ]]; then
		# Whoever left this here was killed: it no longer holds the lock.
		part=$VM_CACHE/$name.part
		rm -rf "$part"
		mkdir "$part"
		trap 'rm -rf "$part"' EXIT
		(
			cd "$part" || exit 125
			"$make" "$name"
		) >&2
		mv "$part" "$VM_CACHE/$name"
	fi
	echo "$VM_CACHE/$name"
}

# Neither installs anything nor needs root.
fetch() { # PACKAGE
	apt-get -qq -o APT::Sandbox::User=root download "$1" ||
		die 77 "no package $1 and no way to get it (apt-get update?)"
}
