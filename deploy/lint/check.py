#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
The rules of this project that no common tool knows: which layer may include which, calls that are forbidden where,
sizes, names, licence lines. Reads only; prints one line per violation.

Usage: check.py ROOT FILE...    FILEs relative to ROOT
Exit status: 0 clean, 1 violations, 2 usage.
"""
import ast
import glob
import os
import re
import sys

FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70
PYTHON_COLUMNS_MAX = 160  # of texts, that are found as they are said; 140 else reads better
LICENCE = "SPDX-License-Identifier: Apache-2.0"

# Who may include whom. The first prefix that fits a file is its layer.
LAYERS = [
    ("phub/base/", "base"),
    ("phub/control/", "control"),
    ("phub/cli/", "cli"),
    ("phub/main.c", "main"),
    ("phub/", "box"),
    ("aggregation/", "aggregation"),
    ("topology/", "topology"),
    ("transport/", "transport"),
    ("client/", "client"),
    ("tests/", "tests"),
]
ANY = {layer for _, layer in LAYERS}
MAY_INCLUDE = {
    "base": {"base"},
    "aggregation": {"base", "aggregation"},
    "topology": {"base", "topology"},
    "transport": {"base", "transport"},
    "box": {"base", "aggregation", "topology", "transport", "box"},
    "control": {"base", "topology", "transport", "box", "control"},
    "main": ANY - {"client", "cli", "tests"},
    "client": {"base", "topology", "transport", "client"},
    "cli": ANY - {"main", "tests"},
    "tests": ANY - {"main"},
}
# The client converts and encodes what it sends, but sums nothing. phubd joins the box to the client's half of its sessions
# with its standby.
EXCEPTIONS = {"client": re.compile(r"aggregation/(convert|codec\w*|sparse)\.h$"), "main": re.compile(r"client/(call|env)\.h$")}

# Foreign headers with one place to be included from.
HEADERS = [
    (re.compile(r"(infiniband|rdma)/"), re.compile(r"transport/verbs\w*\.[ch]$")),
    (re.compile(r"rte_"), re.compile(r"(transport/dpdk\w*\.[ch]|tests/fuzz/fuzz_dpdk\.c)$")),
    (re.compile(r"(\w+mmintrin|immintrin|arm_neon|arm_sve)\.h"), re.compile(r"aggregation/kernels_\w+\.[ch]$")),
    (re.compile(r"hwloc"), re.compile(r"topology/discover\w*\.[ch]$")),
]

# Calls: names, in which files, why.
PRINTING = "v?f?printf|f?puts|f?putc|putchar|perror|exit|_exit|abort"
FORBIDDEN = [
    (r"v?sprintf|strcpy|strcat|gets|strtok|tmpnam", r"", "has no bound; use snprintf or memcpy with a length"),
    (r"ato[ifl]|atoll", r"", "cannot fail; use strtol and check it"),
    (r"s?rand", r"", "is one hidden state for all threads; tests carry a seeded generator of their own"),
    (r"alloca", r"", "has no bound"),
    (r"system|popen", r"", "runs a shell"),
    (PRINTING, r"client/(?!example(_scout)?\.c)", "libphub neither prints nor ends its host's process"),
    (r"(m|c|re|aligned_)alloc|free|strn?dup|posix_memalign|pthread_\w+|mmap", r"aggregation/",
     "aggregation/ is arithmetic: no memory, threads or I/O of its own"),
    (PRINTING + r"|log_(error|warn|info|debug|write)", r"phub/(?!main\.c)[^/]*\.[ch]$", "the data path prints nothing"),
]

# Installed beside each other, so they name each other without a folder.
PUBLIC = ("client/phub.h", "client/phub_sites.h")

errors = 0


def complain(path, line, text):
    global errors
    errors += 1
    print(f"{path}:{line}: {text}")


def layer_of(path):
    for prefix, layer in LAYERS:
        if path.startswith(prefix):
            return layer
    return None


def blank(match):
    """Keeps the lines of what it removes, so that line numbers hold."""
    return " " + "\n" * match.group(0).count("\n")


def line_of(code, match):
    return code.count("\n", 0, match.start()) + 1


def strip(text):
    """C without comments and without what is between quotes."""
    token = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
    return re.sub(token, lambda m: m.group(0) if m.group(0)[0] in "\"'" else blank(m), text, flags=re.S)


def check_include(root, path, number, header):
    layer = layer_of(path)
    target = layer_of(header)
    if path in PUBLIC and f"client/{header}" in PUBLIC:
        return
    if "/" not in header or header.startswith("."):
        complain(path, number, f'"{header}": include by the full path from the root')
    elif not header.endswith(".pb-c.h") and not os.path.exists(os.path.join(root, header)):
        complain(path, number, f'"{header}": no such file from the root')
    elif layer and target and target not in MAY_INCLUDE[layer]:
        if not (layer in EXCEPTIONS and EXCEPTIONS[layer].match(header)):
            complain(path, number, f'layer rule: {layer} may not include {target} ("{header}")')


def check_includes(root, path, code):
    found = []
    for match in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*(<[^>]+>|"[^"]+")', code, re.M):
        number = code.count("\n", 0, match.start(1)) + 1
        header = match.group(1)[1:-1]
        found.append(header)
        if match.group(1)[0] == '"':
            check_include(root, path, number, header)
        for name, place in HEADERS:
            if name.match(header) and not place.match(path):
                complain(path, number, f"<{header}> may only be included in {place.pattern}")
    own = path[:-2] + ".h"
    if path.endswith(".c") and os.path.exists(os.path.join(root, own)) and (not found or found[0] != own):
        complain(path, 1, f'own header first: "{own}"')


def check_calls(path, code):
    bare = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', code)
    for names, place, why in FORBIDDEN:
        if not re.match(place, path):
            continue
        for match in re.finditer(r"(?<![\w.>])(" + names + r")\s*\(", bare):
            complain(path, line_of(bare, match), f"{match.group(1)}(): {why}")


def check_names(path, code):
    for match in re.finditer(r"\btypedef\s+(struct|union|enum)\b", code):
        if path not in PUBLIC:
            complain(path, line_of(code, match), f"typedef {match.group(1)}: write it out")
    if layer_of(path) not in ("client", "tests"):
        for match in re.finditer(r"^[A-Za-z_][\w \t*]*\b(phub_\w+)\s*\(", code, re.M):
            complain(path, line_of(code, match), f"{match.group(1)}(): phub_ is for the public API alone")


def check_functions(path, lines):
    """Functions open and close in column 0; clang-format sees to that."""
    begin = None
    for number, line in enumerate(lines, 1):
        if line.startswith("{"):
            begin = number
        elif line.startswith("}") and begin is not None:
            if number - begin + 1 > FUNCTION_LINES_MAX:
                complain(path, begin, f"function of {number - begin + 1} lines; at most {FUNCTION_LINES_MAX}")
            begin = None


def functions_of(code):
    """Name, head and body of each function, and of each macro with arguments; clang-format puts braces into column 0."""
    bare = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', code)
    for match in re.finditer(r"^([A-Za-z_][^;{}#=]*?\b(\w+)\([^;{}]*\))\s*^\{\n(.*?)^\}", bare, re.M | re.S):
        yield match.group(2), match.group(1), match.group(3), line_of(bare, match)
    for match in re.finditer(r"^#define ()(\w+)\(((?:[^\n]*\\\n)*[^\n]*)", bare, re.M):
        yield match.group(2), "", match.group(3), line_of(bare, match)


def check_cases(root, paths):
    """Each case, which is a `static void NAME(void **state)` of the tests, reaches an assertion: its own, or one of a function
    that its body names. A static function is known in its own file alone."""
    paths = {path for path in paths if path.startswith("tests/")}
    if not paths:
        return
    asserts = re.compile(r"\b(assert_\w+|fail|fail_msg|abort)\s*\(")
    bodies, cases = {}, []
    for path in sorted(glob.glob("tests/**/*.[ch]", root_dir=root, recursive=True)):
        with open(os.path.join(root, path), encoding="utf-8") as file:
            for name, head, body, line in functions_of(strip(file.read())):
                local = path.endswith(".c") and (not head or re.match(r"(\w+ )*static ", head))
                bodies[path if local else "", name] = body
                if re.match(r"static void \w+\(void \*\*state\)$", head):
                    cases.append((path, line, name))
    good = {function for function, body in bodies.items() if asserts.search(body)}
    named = {function: {call for word in re.findall(r"(?<![\w.>])[A-Za-z_]\w*", body)
                        for call in [(function[0], word) if (function[0], word) in bodies else ("", word)] if call in bodies}
             for function, body in bodies.items()}
    grown = True
    while grown:
        more = {function for function, calls in named.items() if function not in good and not calls.isdisjoint(good)}
        good |= more
        grown = bool(more)
    for path, line, name in cases:
        if path in paths and (path, name) not in good:
            complain(path, line, f"{name}(): a case without an assertion")


def check_statics(root, paths):
    """Under a sanitizer a layer is one translation unit, where two static variables of one name and no value become one, unsaid."""
    seen = {}
    for path in paths:
        layer = layer_of(path)
        if not path.endswith(".c") or layer in ("tests", "aggregation", "main", None) or path.startswith("transport/dpdk"):
            continue
        with open(os.path.join(root, path), encoding="utf-8") as file:
            code = strip(file.read())
        for match in re.finditer(r"^static\b([^(){}=;]*);", code, re.M):
            for name in re.findall(r"(\w+)\s*(?:\[[^\]]*\]\s*)*(?=,|$)", match.group(1)):
                other = seen.setdefault((layer, name), path)
                if other != path:
                    complain(path, line_of(code, match), f"static {name}: {other} has one too, and a layer may be one translation unit")


def check_file(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        text = file.read()
    lines = text.split("\n")
    if LICENCE not in "\n".join(lines[:3]):
        complain(path, 1, f"no line \"{LICENCE}\" among the first three")
    if text.count("\n") > FILE_LINES_MAX:
        complain(path, FILE_LINES_MAX, f"file of {text.count(chr(10))} lines; at most {FILE_LINES_MAX}")
    if path.endswith((".c", ".h")):
        code = strip(text)
        check_includes(root, path, code)
        check_calls(path, code)
        check_names(path, code)
        check_functions(path, lines)
    elif path.endswith(".py"):
        for number, line in enumerate(lines, 1):
            if len(line) > PYTHON_COLUMNS_MAX:
                complain(path, number, f"line of {len(line)} columns; at most {PYTHON_COLUMNS_MAX}")
        try:
            ast.parse(text, path)
        except SyntaxError as error:
            complain(path, error.lineno or 1, f"syntax: {error.msg}")


def main(root=None, *paths):
    """Callable again: deploy/lint/self_test.py does, once a violation."""
    global errors
    errors = 0
    if not paths:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    for path in paths:
        check_file(root, path)
    check_cases(root, paths)
    check_statics(root, paths)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
