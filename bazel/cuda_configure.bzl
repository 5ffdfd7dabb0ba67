"""Finds the CUDA toolkit (CUDA_HOME, then /usr/local/cuda). nvcc's host compiler is NVCC_CCBIN, or else g++.

@local_cuda//:defs.bzl has CUDA_ENABLED, NVCC and CUDA_HOME; @local_cuda//:cudart_static is the runtime, linked
statically so that a binary starts on a machine without a driver. Without a toolkit the target is empty and
lockstep_cuda_library compiles its stub.
"""

_BUILD_WITH_CUDA = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "cudart_static",
    srcs = ["cuda/lib64/libcudart_static.a"],
    hdrs = glob(["cuda/include/**"], exclude = ["cuda/include/cccl/**"]),
    includes = ["cuda/include"],
    linkopts = ["-ldl", "-lrt", "-lpthread"],
)
"""

_BUILD_WITHOUT_CUDA = """
package(default_visibility = ["//visibility:public"])

cc_library(name = "cudart_static")
"""

def _cuda_configure_impl(ctx):
    home = ctx.os.environ.get("CUDA_HOME", "/usr/local/cuda")
    nvcc = ctx.path(home + "/bin/nvcc")
    enabled = nvcc.exists and ctx.path(home + "/lib64/libcudart_static.a").exists
    ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % ctx.name)
    ctx.file("defs.bzl", "CUDA_ENABLED = %s\nNVCC = \"%s\"\nNVCC_CCBIN = \"%s\"\nCUDA_HOME = \"%s\"\n" % (
        enabled,
        nvcc,
        ctx.os.environ.get("NVCC_CCBIN", "g++"),
        home,
    ))
    if enabled:
        ctx.symlink(home, "cuda")
    ctx.file("BUILD.bazel", _BUILD_WITH_CUDA if enabled else _BUILD_WITHOUT_CUDA)

cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    environ = ["CUDA_HOME", "NVCC_CCBIN"],
    local = True,
)
