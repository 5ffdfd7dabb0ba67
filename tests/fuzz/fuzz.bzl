"""A fuzz target, built in two ways: see docs/fuzzing.md."""

load("//bazel:lockstep.bzl", "lockstep_cc_binary", "lockstep_cc_library", "lockstep_cc_test")

def lockstep_fuzz_target(name, deps, tags = []):
    """NAME_fuzz.cc as NAME_corpus_test, which runs it over corpus/NAME, and as NAME_fuzz, which libFuzzer drives.

    Args:
      name: the target.
      deps: what it includes.
      tags: of the test.
    """
    lockstep_cc_library(
        name = name,
        testonly = True,
        srcs = [name + "_fuzz.cc"],
        deps = deps + [":fuzz"],
        alwayslink = True,
    )
    lockstep_cc_test(
        name = name + "_corpus_test",
        srcs = [],
        args = ["tests/fuzz/corpus/" + name],
        data = native.glob(["corpus/%s/*" % name]),
        tags = tags,
        deps = [
            name,
            ":run_corpus",
        ],
    )

    # Only --config=fuzz has what it links with: tools/fuzz names it.
    lockstep_cc_binary(
        name = name + "_fuzz",
        testonly = True,
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"],
        deps = [name],
    )
