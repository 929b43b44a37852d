#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
Does lint.sh find what it should? Each violation stands alone in a tree of its own. Those of our own rules (check.py, k8s.py)
are checked in this process: exit status 1, and exactly the lines that name the violation. Those of the common tools,
and one violation of each of our own checkers, go through all of lint.sh: exit status 1, and that checker alone failed. What looks
wrong but is allowed goes through all of lint.sh too, many files in one tree: exit status 0, and not a word but "clean".

Usage: lint.sh --self-test
Exit status: 0 all cases passed, 1 some failed.
"""
import contextlib
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import check  # noqa: E402
import k8s  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
LICENCE = "/* SPDX-License-Identifier: Apache-2.0 */\n"
HEADERS = ["phub/base/mem.h", "phub/chunk.h", "phub/control/job.h", "transport/wire.h", "topology/model.h", "aggregation/kernels.h",
           "aggregation/convert.h", "client/lane.h"]


def body(statement):
    return f"void f(void);\n\nvoid f(void)\n{{\n\t{statement}\n}}\n"


def include(*headers):
    return "".join(f"#include {header if header[0] == '<' else chr(34) + header + chr(34)}\n" for header in headers)


def function(lines):
    return "void f(void);\n\nvoid f(void)\n{\n" + "\tg();\n" * (lines - 2) + "}\n"


def case(statement, more=""):
    return f"{more}static void test_a(void **state)\n{{\n\t{statement}\n}}\n"


# What is said, in which file, of which text.
LAYERS = [(path, header) for path, headers in {
    "phub/base/a.c": ["transport/wire.h"],
    "aggregation/a.c": ["transport/wire.h", "topology/model.h"],
    "topology/a.c": ["aggregation/kernels.h", "transport/wire.h"],
    "transport/a.c": ["aggregation/kernels.h", "topology/model.h"],
    "transport/a.h": ["phub/chunk.h"],
    "phub/a.c": ["phub/control/job.h", "client/lane.h"],
    "phub/control/a.c": ["aggregation/kernels.h", "client/lane.h"],
    "client/a.c": ["phub/chunk.h", "phub/control/job.h", "aggregation/kernels.h"],
    "phub/main.c": ["client/lane.h"]}.items() for header in headers]
RULES = [("layer rule", path, include(header)) for path, header in LAYERS] + [
    ("full path", "transport/a.c", include("wire.h")),
    ("full path", "client/a.h", include("phub.h")),
    ("no such file", "transport/a.c", include("transport/missing.h")),
    ("own header first", "phub/chunk.c", include("phub/base/mem.h", "phub/chunk.h")),
    ("may only be included", "transport/tcp.c", include("<infiniband/verbs.h>")),
    ("may only be included", "transport/udp.c", include("<rte_mbuf.h>")),
    ("may only be included", "phub/a.c", include("<immintrin.h>")),
    ("may only be included", "aggregation/convert.c", include("aggregation/convert.h", "<immintrin.h>")),
    ("may only be included", "phub/control/a.c", include("<hwloc.h>")),
    *[(re.escape(call[:call.index("(")]) + r"\(\):", "phub/control/a.c", body(call + ";")) for call in (
        "sprintf(a, b)", "strcpy(a, b)", "strcat(a, b)", "gets(a)", "atoi(a)", "rand()", "alloca(8)", "system(a)", "popen(a, b)")],
    *[(why, path, body(call + ";")) for call in ('printf("x")', 'puts("x")', "exit(1)", 'fprintf(stderr, "x")')
      for why, path in (("libphub", "client/a.c"), ("data path", "phub/a.c"))],
    ("data path", "phub/a.c", body('log_warn("x");')),
    *[("arithmetic", "aggregation/a.c", body(call + ";")) for call in ("malloc(8)", "free(a)", "pthread_mutex_lock(a)")],
    ("function of 71 lines", "phub/a.c", function(71)),
    ("file of 801 lines", "phub/a.h", "/* A line. */\n" * 800),
    ("typedef struct", "phub/a.h", "typedef struct chunk chunk_t;\n"),
    ("public API", "phub/a.c", "void phub_start(void);\n"),
    (r"test_a\(\): a case without", "tests/unit/test_a.c", case("f();", body("g();"))),
    (r"test_a\(\): a case without", "tests/suite/a.c", case("s->elsewhere(1); /* assert_true(1) */")),
    ("no line", "deploy/a.sh", "#!/bin/sh\ntrue\n"),
    ("syntax", "deploy/a.py", "# SPDX-License-Identifier: Apache-2.0\ndef\n"),
    ("line of 161 columns", "deploy/a.py", "# SPDX-License-Identifier: Apache-2.0\n#" + "a".rjust(160) + "\n"),
]
# Beside each violation; a static function is known in its own file alone.
ELSEWHERE = ("tests/unit/rig.c", "static void elsewhere(int a)\n{\n\tassert_true(a);\n}\n")

# The checker that alone fails comes first.
TOOLS = [
    ("rules", "layer rule", "phub/base/a.c", include("transport/wire.h")),
    ("format", "a.c: not laid out", "phub/a.c", "int  a;\n"),
    ("format", "a.c: not laid out", "phub/a.c", "/* " + "word " * 25 + "*/\n"),
    ("headers, each by itself", "a.h.*size_t", "client/a.h", "static inline size_t f(void)\n{\n\treturn 0;\n}\n"),
    ("headers, each by itself", "a.h.*redefinition", "client/a.h", "struct a {\n\tint b;\n};\n"),
    ("cppcheck", "nullPointer", "phub/control/a.c", "int f(void);\n\nint f(void)\n{\n\tint *a = 0;\n\n\treturn *a;\n}\n"),
    ("shellcheck", "SC2086", "deploy/a.sh", "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\nls $1\n"),
]

ALLOWED = [
    ("client/a.c", include("aggregation/convert.h")),
    ("phub/main.c", include("phub/chunk.h", "phub/control/job.h")),
    ("phub/cli/a.c", include("client/lane.h", "phub/base/mem.h")),
    ("tests/unit/a.c", include("phub/chunk.h", "client/lane.h")),
    ("transport/a.c", '/* #include "phub/chunk.h" */\n'),
    ("client/phub_sites.h", include("phub.h")),
    ("phub/chunk.c", include("phub/chunk.h", "phub/base/mem.h")),
    ("transport/verbs.c", include("<infiniband/verbs.h>")),
    ("transport/dpdk_port.c", include("<rte_mbuf.h>")),
    ("aggregation/kernels_avx2.c", include("<immintrin.h>")),
    ("phub/control/a.c", body('log_warn("x");')),
    ("client/example.c", body('puts("x");')),
    ("client/example_scout.c", body('puts("x");')),
    ("phub/a.c", body("log_warn_count = my_rand(1) + box->exit(2); /* printf() */")),
    ("phub/control/b.c", body('log_info("system() is not called here");')),
    ("phub/b.c", function(70)),
    ("phub/c.h", "/* A line. */\n" * 799),
    ("client/phub.h", "typedef struct phub phub_t;\n"),
    ("client/phub_sites.h", "typedef struct phub_site phub_site_t;\n"),
    ("client/b.h", "#pragma once\n#include <stddef.h>\n\nstruct a {\n\tsize_t b;\n};\n"),
    ("aggregation/kernels_simd.h", "vec f(vec a);\n"),
    ("tests/unit/test_a.c", case("assert_true(1);")),
    ("tests/unit/test_b.c", case("run(own);", "static void own(void)\n{\n\tREQUIRE(1);\n}\n\n")),
    ("tests/unit/b_rig.h", "#define REQUIRE(c)               \\\n\tdo {                     \\\n\t\tif (!(c))        \\\n\t\t\tabort(); \\\n\t} while (0)\n"),
]

# The manifests that we have, each time with something else in one of them: what is said, line by line, sed's expression, the file.
MANIFESTS = [(said, expression, "box") for said, expression in (
    ("no field 'replica'\nlacks 'replicas'", "s/replicas: 1/replica: 1/"),
    ("'4' is no whole number", "s/replicas: 1/replicas: '4'/"),
    ("apiVersion 'v1'; of a StatefulSet", "s,apps/v1,v1,"),
    ("lacks 'limits'", "/limits:/d"),
    ("the limit not below it", 's/limits: {cpu: "4"/limits: {cpu: 500m/'),
    ("runAsNonRoot: False", "s/runAsNonRoot: true/runAsNonRoot: false/"),
    ("tag that is not latest", "s/phub-box:0.1.0/phub-box:latest/"),
    ("no Service 'phub-bax'", "s/serviceName: phub-box/serviceName: phub-bax/"),
    ("secret 'phub-secrets' is neither", "s/secretName: phub-secret/secretName: phub-secrets/"),
    ("mounts 'configs', which is no volume\nno container mounts volume 'config'", "s/name: config, mountPath/name: configs, mountPath/"),
    ("no pod that it selects has a port 'kontrol'", "s/targetPort: control/targetPort: kontrol/"),
    ("no pod here has the labels", "/- podSelector/,/matchLabels/s/component: worker/component: workers/"))] + [
    ("data-0'\ndata-1'\ndata-2'\ndata-3'\nits selector does not fit", "/^  selector:/,/template:/s/component: node-box/component: box/", "nodes"),
    ("no pod that it selects has a port 'data-9'", "s/targetPort: data-3/targetPort: data-9/", "nodes"),
    ("allowed: Local, Cluster", "s/internalTrafficPolicy: Local/internalTrafficPolicy: local/", "nodes"),
    ("'phub-box' is no Service here with a port", "s/uplink: phub-box:7077/uplink: phub-box/", "nodes"),
    ("'phub-bax:7077' is no Service here", "s/uplink: phub-box:7077/uplink: phub-bax:7077/", "nodes"),
    (r"and WORLD_SIZE \[4\] the same", "s/completions: 4/completions: 5/", "workers"),
]
YAML = [
    (["yamllint"], "trailing spaces", "s/^spec:/spec: /", "box"),
    (["yamllint", "kubernetes"], "while parsing|syntax error", "s/^spec:/spec: [/", "box"),
    (["kubernetes"], "no field 'replica'", "s/replicas: 1/replica: 1/", "box"),
]

passed = failed = 0


def judge(good, what, output):
    global passed, failed
    passed, failed = passed + good, failed + (not good)
    if not good:
        print(f"lint self-test: {what}; lint said:\n{output}")


def plant(tree, files):
    """A tree with these files, and those of HEADERS that they name, each a licence line."""
    shutil.rmtree(tree, ignore_errors=True)
    headers = [(header, "") for header in HEADERS if any(header in text for _, text in files)]
    for path, text in [*headers, *files]:
        file = tree / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text if path.endswith((".sh", ".py")) else LICENCE + text)


def plant_manifests(tree, expression, name):
    shutil.rmtree(tree, ignore_errors=True)
    folder = tree / "deploy/k8s"
    shutil.copytree(HERE.parent / "k8s", folder, ignore=lambda _, names: [n for n in names if not n.endswith(".yaml")])
    subprocess.run(["sed", "-i", expression, folder / f"{name}.yaml"], check=True)
    return sorted(str(path) for path in folder.iterdir())


def called(main, *arguments):
    """What a checker returns and says."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = main(*arguments)
    return status, said.getvalue()


def lint(tree):
    env = {**os.environ, "LINT_ROOT": str(tree), "LINT_CACHE": str(tree.parent / "cache")}
    done = subprocess.run([HERE / "lint.sh"], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def exactly(status, output, patterns, path=""):
    """This was said, line by line and nothing else, and it makes lint fail."""
    lines, patterns = output.splitlines(), patterns.split("\n")
    return status == 1 and len(lines) == len(patterns) and all(
        line.startswith(path) and re.search(pattern, line) for line, pattern in zip(lines, patterns))


def alone(checkers, status, output, pattern):
    """These checkers alone failed."""
    return status == 1 and re.search(pattern, output) is not None and re.findall(r"^lint: (.*): failed$", output, re.M) == checkers


def check_violations(tree):
    for pattern, path, text in RULES:
        plant(tree, [ELSEWHERE, (path, text)])
        status, output = called(check.main, str(tree), path)
        judge(exactly(status, output, pattern, path + ":"), f'{path}: not "{pattern}" alone about: {text}', output)
    twins = {f"phub/{name}.c": f"static int before_{name}, twin[8];\n" for name in "ab"}
    plant(tree, list(twins.items()))
    status, output = called(check.main, str(tree), *twins)
    judge(exactly(status, output, "static twin: phub/a.c has one too", "phub/b.c:"), "two static variables of one name and layer", output)
    for pattern, expression, name in MANIFESTS:
        status, output = called(k8s.main, *plant_manifests(tree, expression, name))
        judge(exactly(status, output, pattern), f'k8s/{name}.yaml with "{expression}": not "{pattern}" alone', output)
    for checker, pattern, path, text in TOOLS:
        plant(tree, [(path, text)])
        status, output = lint(tree)
        judge(alone([checker], status, output, pattern), f'{path}: not "{checker}" alone, with "{pattern}", about: {text}', output)
    for checkers, pattern, expression, name in YAML:
        plant_manifests(tree, expression, name)
        status, output = lint(tree)
        judge(alone(checkers, status, output, pattern), f'k8s/{name}.yaml with "{expression}": not {checkers} alone', output)


def check_allowed(tree):
    """In as few trees as hold each path once; the first has the manifests too."""
    left = ALLOWED
    while left:
        now = dict(reversed(left))
        first = left is ALLOWED
        left = [item for item in left if now[item[0]] != item[1]]
        plant(tree, now.items())
        if first:
            shutil.copytree(HERE.parent / "k8s", tree / "deploy/k8s")
        status, output = lint(tree)
        judge(status == 0 and re.fullmatch(r"lint: \d+ C files, .*: clean\n", output) is not None, "not all of these passed: " +
              " ".join(now), output)


def main():
    with tempfile.TemporaryDirectory() as folder:
        check_violations(pathlib.Path(folder) / "tree")
        check_allowed(pathlib.Path(folder) / "tree")
    print(f"lint self-test: {passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
