"""The rules that our own targets use: strict warnings that stay ours, and layering_check where the compiler has it."""

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

_CXX_ONLY = ["-Wnon-virtual-dtor", "-Woverloaded-virtual"]

LOCKSTEP_C_COPTS = [flag for flag in LOCKSTEP_COPTS if flag not in _CXX_ONLY] + ["-std=c99", "-pedantic"]

# Environment of tests over libfabric, which does not free all that it allocates; //transport/ofi:lsan_suppressions is in
# their data.
LEAKS_OF_LIBFABRIC = {"LSAN_OPTIONS": "suppressions=transport/ofi/lsan_suppressions.txt"}

_FEATURES = ["layering_check"]

def lockstep_cc_library(copts = [], features = [], **kwargs):
    native.cc_library(copts = LOCKSTEP_COPTS + copts, features = _FEATURES + features, **kwargs)

def lockstep_cc_binary(copts = [], features = [], **kwargs):
    native.cc_binary(copts = LOCKSTEP_COPTS + copts, features = _FEATURES + features, **kwargs)

def lockstep_cc_test(deps = [], copts = [], features = [], size = "small", **kwargs):
    native.cc_test(
        size = size,
        copts = LOCKSTEP_COPTS + copts,
        features = _FEATURES + features,
        deps = deps + ["@com_google_googletest//:gtest_main"],
        **kwargs
    )

def lockstep_test_on_fake_device(test, size = "small", tags = [], one_queue = False):
    """The program of a test of this package once more, on a device made of the host: see tests/test_device.h."""
    native.sh_test(
        name = test + ("_on_one_queue" if one_queue else "_on_fake_device"),
        size = size,
        srcs = ["//tests:on_device.sh"],
        args = ["one_queue" if one_queue else "fake", "$(rootpath :%s)" % test],
        data = [":" + test],
        tags = tags,
    )

def lockstep_cc_benchmark(name, deps = [], copts = [], features = [], tags = [], **kwargs):
    """A Google Benchmark program: run it with `bazel run -c opt`; it never runs as a test."""
    native.cc_binary(
        name = name,
        testonly = True,
        copts = LOCKSTEP_COPTS + copts,
        features = _FEATURES + features,
        tags = tags + ["benchmark"],
        deps = deps + ["@com_github_google_benchmark//:benchmark_main"],
        **kwargs
    )
