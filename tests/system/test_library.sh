#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# libphub as a program meets it: only phub_* is visible, shared and static; an installed copy is found by pkg-config,
# and a program builds and runs against either; make uninstall takes all of it away.
set -u
cd "$(dirname "$0")/../.." || exit 1
BUILD=${BUILD:-build}

if ! [[ -f $BUILD/libphub.so ]]; then
	echo "no libphub in $BUILD"
	exit 77
fi
if nm -D "$BUILD/libphub.so" | grep -qE '__(asan|tsan|ubsan)_'; then
	echo "a sanitizer adds names of its own"
	exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
count=0 failed=0

ok() { # STATUS NAME
	count=$((count + 1))
	if (($1 == 0)); then
		echo "ok $count $2"
	else
		echo "not ok $count $2"
		failed=1
	fi
}

foreign() { # NM-OUTPUT; the defined names that are not ours to give
	grep -vE ' phub_[a-z_]+$' <<<"$1"
}

names=$(nm -D --defined-only "$BUILD/libphub.so")
[[ $names == *" phub_connect"* ]] && ! foreign "$names"
ok $? "the shared library gives phub_* alone"

names=$(nm -g --defined-only "$BUILD/libphub.a" | grep -E '^[0-9a-f]+ ')
[[ $names == *" phub_connect"* ]] && ! foreign "$names"
ok $? "the static library gives phub_* alone"

# The compiler that built it, or make would build it anew.
read -r CC _ <"$BUILD/.flags"
make --no-print-directory BUILD="$BUILD" CC="$CC" DESTDIR="$work" PREFIX=/usr install >"$work/log" 2>&1 || cat "$work/log"
for file in bin/phub bin/phubd include/phub.h include/phub_sites.h lib/libphub.a lib/libphub.so lib/libphub.so.0 lib/pkgconfig/phub.pc; do
	[[ -e $work/usr/$file ]] || echo "# missing: $file"
done
[[ -x $work/usr/bin/phubd && -e $work/usr/lib/libphub.so.0 ]] && grep -q '^ExecStart=/usr/bin/phubd ' "$work/usr/lib/systemd/system/phubd.service"
ok $? "make install"

cat >"$work/user.c" <<'END'
#include <phub.h>

/* A name that libphub uses inside; its own must not be in the way. */
int log_write(void);

int log_write(void)
{
	return phub_error() ? 0 : 1;
}

int main(void)
{
	return log_write();
}
END
export PKG_CONFIG_PATH=$work/usr/lib/pkgconfig
flags() { # OPTION...
	pkg-config --define-prefix "$@" phub
}
# shellcheck disable=SC2046 # flags are words
"$CC" -Werror -Wall -o "$work/shared" "$work/user.c" $(flags --cflags --libs) &&
	LD_LIBRARY_PATH=$work/usr/lib "$work/shared"
ok $? "a program with the shared library"

# shellcheck disable=SC2046
"$CC" -Werror -Wall -o "$work/static" "$work/user.c" $(flags --cflags) "$work/usr/lib/libphub.a" \
	$(flags --static --libs | sed 's/-lphub//') && "$work/static"
ok $? "a program with the static library"

# shellcheck disable=SC2046
"$CC" -Werror -Wall -o "$work/example" client/example.c $(flags --cflags --libs)
ok $? "the example, as a user builds it"

make --no-print-directory BUILD="$BUILD" CC="$CC" DESTDIR="$work" PREFIX=/usr uninstall >"$work/log" 2>&1 || cat "$work/log"
left=$(find "$work/usr" ! -type d)
[[ -z $left ]]
ok $? "make uninstall leaves nothing${left:+ but $left}"

echo "1..$count"
exit $failed
