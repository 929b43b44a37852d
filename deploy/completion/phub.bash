# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# Completion of the phub command for bash: source it, or install it as
# /usr/share/bash-completion/completions/phub.

_phub_models() {
	compgen -W "$(phub models 2>/dev/null | awk 'NR > 1 { print $1 }')" -- "$1"
	compgen -f -X '!*.csv' -- "$1"
}

# The values of an option, or nothing when anything goes.
_phub_values() { # OPTION WORD
	case $1 in
	--transport) compgen -W 'shm tcp udp verbs dpdk loop' -- "$2" ;;
	--optimizer) compgen -W 'none sgd momentum nesterov adagrad adam adamw' -- "$2" ;;
	--mode) compgen -W 'zero-copy copy' -- "$2" ;;
	--check) compgen -W 'first-last all' -- "$2" ;;
	--dtype) compgen -W 'f32 f16 bf16' -- "$2" ;;
	--seal) compgen -W 'gmac crc none' -- "$2" ;;
	--poll) compgen -W 'busy adaptive' -- "$2" ;;
	--how) compgen -W 'tall wide all' -- "$2" ;;
	--adds) compgen -W 'held arriving all' -- "$2" ;;
	--stores) compgen -W "cached streamed $([[ ${COMP_WORDS[2]} == kernels ]] && echo auto || echo all)" -- "$2" ;;
	--compute) compgen -W 'sleep spin' -- "$2" ;;
	--schedule) compgen -W 'all serial backward fifo priority' -- "$2" ;;
	--trace) compgen -f -X '!*.csv' -- "$2" ;;
	--isa) compgen -W 'auto all base avx2 avx512 neon' -- "$2" ;;
	--model) _phub_models "$2" ;;
	--worker-netns) compgen -W "$(ip netns list 2>/dev/null | awk '{ print $1 }')" -- "$2" ;;
	--phubd | --config | --racks | --kernels | --costs | --timeline | --to) compgen -f -- "$2" ;;
	*) return 1 ;;
	esac
}

_phub_words() { # COMMAND SUBCOMMAND WORD
	local words=''

	case $1 in
	bench)
		case $2 in
		exchange)
			words='--transport --workers --jobs --bytes --keys --model --dtype --optimizer --mode --rounds --check
				--chunk --reproducible --seal --encrypt --cores --poll --phubd --config --listen --worker-netns --worker-cpus --set --timeout --json
				--help'
			;;
		kernels) words='--isa --workers --kernel --stores --once --quick --json --help' ;;
		aggregation)
			words='--how --adds --fused --separate --stores --optimizer --workers --cores --model --bytes --keys
				--chunk --rounds --json --help'
			;;
		seals) words='--json --help' ;;
		train)
			words='--trace --model --compute-ms --compute --schedule --workers --transport --mode --dtype --optimizer
				--rounds --chunk --timeline --box --job --world --first-rank --phubd --config --set --timeout
				--json --help'
			;;
		*) words='exchange aggregation kernels seals train --help' ;;
		esac
		;;
	checkpoint)
		case $2 in
		ls | verify) words='--job --round --json --help' ;;
		restore) words='--to --parity --job --round --rate --help' ;;
		export) words='--to --weights --job --round --help' ;;
		rm) words='--job --round --yes --force --help' ;;
		*) words='ls verify restore export rm --help' ;;
		esac
		;;
	jobs | top) words='pause resume drain evict rebalance --reason --no-wait --workers --watch --interval --count --json --help' ;;
	boxes) words='--etcd --prefix --racks --watch --interval --timeout --json --help' ;;
	promote) words='--timeout --json --help' ;;
	doctor) words='--quiet --json --help' ;;
	topo)
		words='probe --model --cores --chunk --racks --hierarchy --root --lift --hostbox --svg --json --help'
		[[ $2 != probe ]] || words='--serve --limit --boxes --hosts --racks --port --seconds --streams --out --force --keep --token-file --json --help'
		;;
	plan)
		words='--workers --model --bytes --keys --dtype --optimizer --chunk --transport --nics --link --worker-link --mtu
			--frame --pcie --cache-lines --memory-bandwidth --cores --core-gbps --kernels --costs --here --cpus
			--latency-us --compute-ms --sweep --calibrate --runs --phubd --json --help'
		;;
	models) words='--json --help' ;;
	help) words='bench boxes jobs top promote checkpoint doctor topo plan models' ;;
	version) ;;
	*) words='bench boxes jobs top promote checkpoint doctor topo plan models version help --help --version' ;;
	esac
	compgen -W "$words" -- "$3"
	[[ $1 != models || $3 == -* ]] || _phub_models "$3"
	[[ $1 != checkpoint || -z $2 || $3 == -* ]] || compgen -d -- "$3"
}

_phub() {
	local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command='' sub=''

	((COMP_CWORD > 1)) && command=${COMP_WORDS[1]}
	((COMP_CWORD > 2)) && sub=${COMP_WORDS[2]}
	mapfile -t COMPREPLY < <(_phub_values "$before" "$word" || _phub_words "$command" "$sub" "$word")
}

complete -F _phub phub
