"""The rules that our own targets use: strict warnings that stay ours, and layering_check where the compiler has it."""

load("@libfabric//:defs.bzl", _LIBFABRIC = "VERSION")

# -ffp-contract=off: a fused multiply-add rounds once where the scalar code rounds twice, and bits must not depend on the
# machine. Kept for every target, so that a test's reference is compiled like the code it judges.
LOCKSTEP_COPTS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-sign-compare",
    "-Wno-unused-parameter",
    "-Wnon-virtual-dtor",
    "-Woverloaded-virtual",
    "-ffp-contract=off",
    "-fvisibility=hidden",
]

# A plain build is for tests, which spend their time in the libraries. Where the user asks for -c opt or -c dbg, that holds.
_LIBRARY_COPTS = LOCKSTEP_COPTS + select({
    "//bazel:fastbuild": ["-O1"],
    "//conditions:default": [],
})

_CXX_ONLY = ["-Wnon-virtual-dtor", "-Woverloaded-virtual"]

LOCKSTEP_C_COPTS = [flag for flag in LOCKSTEP_COPTS if flag not in _CXX_ONLY] + ["-std=c99", "-pedantic"]

# Environment of tests over libfabric, which does not free all that it allocates; //transport/ofi:lsan_suppressions is in
# their data.
LEAKS_OF_LIBFABRIC = {"LSAN_OPTIONS": "suppressions=transport/ofi/lsan_suppressions.txt"}

_FEATURES = ["layering_check"]

# What nearly every target includes; the others of Abseil are named where they are used.
_ABSEIL = ["@com_google_absl//absl/" + name for name in [
    "base:core_headers",
    "status",
    "status:statusor",
    "strings",
    "types:optional",
    "types:span",
]]

# Files that are no part of a folder's library, by their names.
_TESTING = [
    "*_conformance.h",
    "*_fixture.h",
    "*_matchers.*",
    "*_processes.h",
    "*_testing.*",
    "*_testing_stub.*",
    "fake_*",
]
_PROGRAMS = ["*_test.cc", "*_benchmark.cc", "*_main.cc"]

# The rooms of a layer, from the lowest: the library of one uses those before it. Tests may use all.
_ROOMS = {
    "base": ["", "types", "device", "device/cuda"],
    "kernels": ["", "cpu", "cuda"],
    "transport": ["net", "secure", "", "exchange", "link", "loopback", "store", "control", "tcp", "shm", "ofi", "nccl"],
    "comm": [
        "schedule",
        "topology",
        "select",
        "",
        "record",
        "plan",
        "engine",
        "host",
        "device",
        "device/nccl",
        "device/staged",
        "world",
        "schedule/verify",
    ],
    "reducer": ["plan", "sparse", "report", "replicas", "pipeline", "buffers", ""],
}

def _check_rooms(package, deps):
    for layer, rooms in _ROOMS.items():
        if (package + "/").startswith(layer + "/"):
            place = rooms.index(package[len(layer) + 1:])
            for dep in deps:
                room = dep.split(":")[0][2:]
                if (room + "/").startswith(layer + "/") and rooms.index(room[len(layer) + 1:]) > place:
                    fail("%s may not use %s: the rooms of %s are, from the lowest, %s (bazel/lockstep.bzl)" % (package, dep, layer, rooms))

# //base comes first in the deps of every library and test, and //base:testing and the folder's own library in those of every test.
# BUILD files do not name them.
def _with_base(deps):
    return deps if native.package_name() == "base" else ["//base"] + deps

def _folder():
    return native.package_name().split("/")[-1]

def _with_own(deps):
    own = native.existing_rule(_folder())
    return [":" + _folder()] + _with_base(deps) if own and own["kind"] == "cc_library" else _with_base(deps)

def _test_deps(deps):
    return _with_own(["//base:testing"] + deps + _ABSEIL + ["@com_google_googletest//:gtest"])

def _in(folders, patterns):
    return [folder + pattern for folder in [""] + [name + "/" for name in folders] for pattern in patterns]

# A flag's type is known by the address of a symbol, which must be the same here and in Abseil's shared library.
def _visible(deps):
    return ["-fvisibility=default"] if [dep for dep in deps if "//absl/flags:" in dep] else []

def lockstep_cc_library(copts = [], features = [], deps = [], **kwargs):
    # linkstatic: nobody loads a library of a folder by itself.
    native.cc_library(
        copts = _LIBRARY_COPTS + copts,
        features = _FEATURES + features,
        linkstatic = True,
        deps = deps + _ABSEIL,
        **kwargs
    )

def lockstep_cc_binary(copts = [], features = [], deps = [], **kwargs):
    native.cc_binary(copts = LOCKSTEP_COPTS + _visible(deps) + copts, features = _FEATURES + features, deps = deps + _ABSEIL, **kwargs)

def lockstep_cc_test(name, srcs = None, deps = [], copts = [], features = [], size = "small", tags = [], **kwargs):
    """A test.

    Args:
      name: the target.
      srcs: NAME.cc by default. []: the deps have its objects (lockstep_cc_test_objects).
      deps: what it includes, but its folder's library, //base, //base:testing and GoogleTest.
      copts: more flags of the compiler.
      features: more features.
      size: as Bazel's. A small test with processes has five minutes: it takes seconds, except under sanitizers on a busy machine.
      tags: "multiprocess" if it starts processes.
      **kwargs: passed on to cc_test.
    """
    if size == "small" and "multiprocess" in tags:
        kwargs = dict({"timeout": "moderate"}, **kwargs)
    srcs = [name + ".cc"] if srcs == None else srcs
    native.cc_test(
        name = name,
        size = size,
        srcs = srcs,
        tags = tags,
        copts = LOCKSTEP_COPTS + copts,
        features = _FEATURES + features,
        deps = (_test_deps(deps) if srcs else deps) + ["@com_google_googletest//:gtest_main"],
        **kwargs
    )

def lockstep_cc_test_objects(name, srcs, deps = [], copts = [], **kwargs):
    """Sources of tests that several tests of a package link, compiled once.

    Args:
      name: the target; it stands in the tests' deps, and their srcs are [].
      srcs: *_test.cc.
      deps: as of lockstep_cc_test.
      copts: more flags of the compiler.
      **kwargs: passed on to cc_library.
    """
    native.cc_library(
        name = name,
        testonly = True,
        srcs = srcs,
        copts = LOCKSTEP_COPTS + copts,
        features = _FEATURES,
        linkstatic = True,
        alwayslink = True,
        deps = _test_deps(deps),
        **kwargs
    )

def lockstep_gpu_test(name, deps = [], copts = [], tags = [], **kwargs):
    """A test that skips without a GPU. //tools/gpu_tests joins all of these in one program, to be carried to a machine that has one.

    Args:
      name: the target, and its source without .cc.
      deps: as of lockstep_cc_test.
      copts: more flags of the compiler.
      tags: more tags.
      **kwargs: passed on to lockstep_cc_test.
    """
    lockstep_cc_test_objects(
        name = name + "_objects",
        srcs = [name + ".cc"],
        copts = copts,
        visibility = ["//tools/gpu_tests:__pkg__"],
        deps = deps,
    )
    lockstep_cc_test(name = name, srcs = [], tags = tags + ["gpu"], deps = [":%s_objects" % name], **kwargs)

# The second best provider, where libfabric has one: net went back into tcp after 1.17 (fi_net(7)), and from 2.0 on tcp is all.
_LIBFABRIC_RELEASE = [int(n) for n in _LIBFABRIC.split(".")[:2]]
_OFI_NEXT = "net;ofi_rxm" if _LIBFABRIC_RELEASE < [1, 18] else "tcp;ofi_rxm" if _LIBFABRIC_RELEASE < [2, 0] else "tcp"

_TRANSPORTS = {
    "default": {},  # what is best here, shared memory
    "tcp": {"LOCKSTEP_TRANSPORT": "tcp"},
    "tcp_tagged": {"LOCKSTEP_TRANSPORT": "tcp", "LOCKSTEP_SECURITY_LOCAL": "1"},
    "tcp_encrypted": {"LOCKSTEP_TRANSPORT": "tcp", "LOCKSTEP_SECURITY": "encrypt"},
    "ofi": {"LOCKSTEP_TRANSPORT": "ofi"},
    "ofi_next": {"LOCKSTEP_TRANSPORT": "ofi", "LOCKSTEP_OFI_PROVIDER": _OFI_NEXT},
}

def lockstep_test_over_transports(name, deps, over = _TRANSPORTS.keys(), **kwargs):
    """NAME.cc as NAME, NAME_over_tcp and so on, for worlds whose options leave the transport to the environment.

    Args:
      name: the source, and the target that runs it over what is best here.
      deps: as of lockstep_cc_test.
      over: transports.
      **kwargs: passed on to lockstep_cc_test.
    """
    lockstep_cc_test_objects(name = name + "_objects", srcs = [name + ".cc"], deps = deps)
    for transport in over:
        lockstep_cc_test(
            name = name if transport == "default" else name + "_over_" + transport,
            srcs = [],
            deps = [":%s_objects" % name],
            data = ["//transport/ofi:lsan_suppressions"],
            env = dict(LEAKS_OF_LIBFABRIC, **_TRANSPORTS[transport]),
            **kwargs
        )

def lockstep_library(name = None, exclude = [], folders = [], deps = [], copts = [], **kwargs):
    """The library of a folder: its sources and headers, but tests, programs and what is made for tests.

    Args:
      name: the target, by default named like the folder.
      exclude: patterns of files that belong to other targets.
      folders: folders below this one whose files belong to it; they have no BUILD file.
      deps: what it includes but //base, of its own layer from lower rooms alone.
      copts: more flags of the compiler.
      **kwargs: passed on to lockstep_cc_library.
    """
    _check_rooms(native.package_name(), deps)
    others = _in(folders, _TESTING + _PROGRAMS) + exclude
    lockstep_cc_library(
        name = name or _folder(),
        srcs = native.glob(_in(folders, ["*.cc"]), exclude = others),
        hdrs = native.glob(_in(folders, ["*.h", "*.inc"]), exclude = others),
        copts = _visible(deps) + copts,
        deps = _with_base(deps),
        **kwargs
    )

def lockstep_testing_library(name = "testing", files = None, exclude = [], deps = [], **kwargs):
    """What a folder has for tests, its own and others': fakes, fixtures, conformance suites.

    Args:
      name: the target.
      files: patterns of its files. By default those that belong to no library by their names, or, with another name, NAME.*.
      exclude: patterns of files that belong to other targets.
      deps: what they include, but the folder's library, //base and GoogleTest.
      **kwargs: passed on to lockstep_cc_library.
    """
    if files == None:
        files = _TESTING if name == "testing" else [name + ".*"]
    lockstep_cc_library(
        name = name,
        testonly = True,
        srcs = native.glob(files, exclude = _PROGRAMS + ["*.h", "*.cu"] + exclude),
        hdrs = native.glob(files, exclude = _PROGRAMS + ["*.cc", "*.cu"] + exclude),
        deps = _with_own(deps) + ["@com_google_googletest//:gtest"],
        **kwargs
    )

def lockstep_unit_tests(name = "unit_tests", folders = [], size = "medium", **kwargs):
    """Every *_test.cc of a folder that no target above has, in one program. Tests with processes or faults stand apart.

    Args:
      name: the target.
      folders: as in lockstep_library.
      size: seconds, except under sanitizers on a busy machine.
      **kwargs: passed on to lockstep_cc_test.
    """
    apart = []
    for rule in native.existing_rules().values():
        if rule["kind"] == "cc_test" or rule.get("alwayslink"):
            apart += [label[1:] for label in rule["srcs"]]
    lockstep_cc_test(
        name = name,
        size = size,
        srcs = native.glob(_in(folders, ["*_test.cc"]), exclude = apart),
        **kwargs
    )

def lockstep_test_on_fake_device(test, one_queue = False, filter = "*", **kwargs):
    """The program of a test of this package once more, on a device made of the host: see tests/test_device.h."""
    native.sh_test(
        name = test + ("_on_one_queue" if one_queue else "_on_fake_device"),
        srcs = ["//tests:on_device.sh"],
        args = ["one_queue" if one_queue else "fake", "$(rootpath :%s)" % test, "--gtest_filter='%s'" % filter],
        data = [":" + test],
        **kwargs
    )

def lockstep_cc_benchmark(name, deps = [], copts = [], features = [], tags = [], **kwargs):
    """A Google Benchmark program, NAME.cc, with deps as of a test: run it with `bazel run -c opt`; it never runs as a test."""
    native.cc_binary(
        name = name,
        testonly = True,
        srcs = [name + ".cc"],
        copts = LOCKSTEP_COPTS + copts,
        features = _FEATURES + features,
        tags = tags + ["benchmark"],
        deps = _test_deps(deps) + ["@com_github_google_benchmark//:benchmark_main"],
        **kwargs
    )
