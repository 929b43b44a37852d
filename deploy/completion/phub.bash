# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# Completion of the commands phub and phubd for bash: source it, or install it as phub and as phubd in
# /usr/share/bash-completion/completions.

# NAME (phub or phubd) beside the command that is being typed: it knows its own options and models.
_phub_program() { # NAME
	local typed=${COMP_WORDS[0]/#\~\//$HOME/}

	if [[ $typed == */* ]]; then
		echo "${typed%/*}/$1"
	else
		echo "$1"
	fi
}

# What is being typed, the word before it, and what stands before that where "=" is between, which is a word of its own.
_phub_look() { # sets word, before, owner
	local at=$((COMP_CWORD - 1))

	word=${COMP_WORDS[COMP_CWORD]}
	owner=''
	if [[ $word == = || ${COMP_WORDS[at]} == = ]]; then
		[[ $word == = ]] || at=$((at - 1))
		[[ $word != = ]] || word=''
		owner=${COMP_WORDS[at - 1]}
	fi
	before=${COMP_WORDS[at]}
}

_phub_models() { # WORD
	compgen -W "$("$(_phub_program phub)" models 2>/dev/null | awk 'NR > 1 { print $1 }')" -- "$1"
	compgen -f -X '!*.csv' -- "$1"
}

# ---- options of phubd, as --dump-config tells them ----

# KEY and what is allowed, a line each: words with blanks between them, FILE, or nothing when anything goes.
_phubd_keys() {
	"$(_phub_program phubd)" --dump-config 2>/dev/null | awk '
		/^# Allowed: / {
			allowed = substr($0, 12)
			sub(/\. Default: .*$/, "", allowed)
			sub(/, each once$/, "", allowed)
			if (allowed ~ /^a path /)
				allowed = "FILE"
			else if (allowed ~ /^[a-z0-9-]+(, [a-z0-9-]+)+$/)
				gsub(/,/, "", allowed)
			else
				allowed = ""
		}
		/^[a-z_]+:/ && !/^jobs:/ { sub(/:.*/, ""); print $0 "\t" allowed }'
}

# Of several with commas between them, as transports has them, the last.
_phubd_values() { # KEY WORD
	local allowed begun=''

	allowed=$(_phubd_keys | awk -F '\t' -v key="$1" '$1 == key { print $2 }')
	[[ $2 != *,* ]] || begun=${2%,*},
	if [[ $allowed == FILE ]]; then
		compgen -f -- "$2"
	else
		compgen -P "$begun" -W "$allowed" -- "${2##*,}"
	fi
}

# KEY=, for -o and --set.
_phubd_settings() { # WORD
	compgen -S = -W "$(_phubd_keys | cut -f 1)" -- "$1"
}

_phubd_words() { # BEFORE OWNER WORD
	if [[ $2 == -o ]]; then
		_phubd_values "$1" "$3"
	elif [[ $1 == -o ]]; then
		_phubd_settings "$3"
	elif [[ $1 == --config ]]; then
		compgen -f -- "$3"
	elif [[ $1 == --* && $1 != --@(dump-config|check-config|version|help) ]]; then
		_phubd_values "${1#--}" "$3"
	else
		compgen -W "--config -o --dump-config --check-config --version --help $(_phubd_keys | sed 's/^/--/; s/\t.*//')" -- "$3"
	fi
}

_phubd() {
	local word before owner

	_phub_look
	[[ $before != -o ]] || compopt -o nospace 2>/dev/null
	mapfile -t COMPREPLY < <(_phubd_words "$before" "$owner" "$word")
}

# ---- phub ----

_phub_is_flag() { # OPTION COMMAND
	case $1 in
	--calibrate | --encrypt | --force | --fused | --help | --here | --hostbox | --json | --keep | --no-wait | --once | --quick) ;;
	--quiet | --reproducible | --separate | --watch | --weights | --yes) ;;
	--workers) [[ $2 == jobs || $2 == top ]] ;;
	*) return 1 ;;
	esac
}

# The values of an option that has some; nothing when anything goes.
_phub_values() { # OPTION WORD COMMAND SUBCOMMAND
	local transports='shm tcp udp verbs dpdk'

	case $1 in
	--transport)
		[[ $4 != exchange ]] || transports+=' loop'
		[[ $4 != train ]] || transports+=' auto'
		compgen -W "$transports" -- "$2"
		;;
	--optimizer) compgen -W 'none sgd momentum nesterov adagrad adam adamw' -- "$2" ;;
	--mode) compgen -W 'zero-copy copy' -- "$2" ;;
	--check) compgen -W 'first-last all' -- "$2" ;;
	--dtype | --lift) compgen -W 'f32 f16 bf16' -- "$2" ;;
	--hierarchy) compgen -W 'flat tree sharded chain' -- "$2" ;;
	--seal) compgen -W 'gmac crc none' -- "$2" ;;
	--poll) compgen -W 'busy adaptive' -- "$2" ;;
	--how) compgen -W 'tall wide all' -- "$2" ;;
	--adds) compgen -W 'held arriving all' -- "$2" ;;
	--stores) compgen -W "cached streamed $([[ $4 == kernels ]] && echo auto || echo all)" -- "$2" ;;
	--kernel)
		compgen -W "$(echo {sum,store,add,{find,zero}_nonfinite}_{f32,f16,bf16} \
			step_{sgd,momentum,nesterov,adagrad,adam,adamw}{,_f16,_bf16})" -- "$2"
		;;
	--compute) compgen -W 'sleep spin' -- "$2" ;;
	--policy) compgen -W 'fixed replay hill stochastic annealing scout+' -- "$2" ;;
	--algorithm) compgen -W 'bsp gaia local dgc' -- "$2" ;;
	--unit) compgen -W 'bytes seconds money' -- "$2" ;;
	--lost) compgen -W 'fail shrink' -- "$2" ;;
	--schedule) compgen -W 'all serial backward fifo priority' -- "$2" ;;
	--trace) compgen -f -X '!*.csv' -- "$2" ;;
	--isa) compgen -W 'auto all base avx2 avx512 neon' -- "$2" ;;
	--model) _phub_models "$2" ;;
	--set) _phubd_settings "$2" ;;
	--worker-netns) compgen -W "$(ip netns list 2>/dev/null | awk '{ print $1 }')" -- "$2" ;;
	--phubd | --config | --racks | --kernels | --costs | --timeline | --to | --out | --svg | --token-file | --secret-file) compgen -f -- "$2" ;;
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
			--latency-us --compute-ms --sweep --calibrate --quick --runs --phubd --json --help'
		;;
	scout)
		case $2 in
		run)
			words='--sites --out --algorithm --policy --thetas --theta --period --sigma --gain --worth --ease --lambda-loss --lambda-bytes
				--trim --seed --unit --rate --latency --price --shadow --lost --box --job --phubd --set --json --help'
			;;
		advise)
			words='--listen --sites --model-bytes --thetas --theta --policy --period --sigma --gain --worth --ease --lambda-loss
				--lambda-bytes --trim --seed --wait --secret-file --out --json --help'
			;;
		compare) words='--json --help' ;;
		explain) words='--at --json --help' ;;
		plot) words='--out --help' ;;
		dry-run)
			words='--policy --thetas --theta --sigma --gain --worth --ease --lambda-loss --lambda-bytes --unit --rate --latency --price --seed
				--json --help'
			;;
		*) words='run compare explain plot dry-run advise --help' ;;
		esac
		;;
	models) words='--json --help' ;;
	help) words='bench boxes jobs top promote checkpoint scout doctor topo plan models' ;;
	version) ;;
	*) words='bench boxes jobs top promote checkpoint scout doctor topo plan models version help --help --version' ;;
	esac
	compgen -W "$words" -- "$3"
	[[ $1 != models || $3 == -* ]] || _phub_models "$3"
	[[ $1 != checkpoint || -z $2 || $3 == -* ]] || compgen -d -- "$3"
	[[ $1 != scout || -z $2 || $3 == -* ]] || compgen -f -- "$3"
}

_phub() {
	local word before owner command='' sub=''

	_phub_look
	((COMP_CWORD > 1)) && command=${COMP_WORDS[1]}
	((COMP_CWORD > 2)) && sub=${COMP_WORDS[2]}
	[[ $before != --set ]] || compopt -o nospace 2>/dev/null
	if [[ $owner == --set ]]; then
		mapfile -t COMPREPLY < <(_phubd_values "$before" "$word")
	elif [[ $before == --?* ]] && ! _phub_is_flag "$before" "$command"; then
		mapfile -t COMPREPLY < <(_phub_values "$before" "$word" "$command" "$sub")
	else
		mapfile -t COMPREPLY < <(_phub_words "$command" "$sub" "$word")
	fi
}

complete -F _phub phub
complete -F _phubd phubd
