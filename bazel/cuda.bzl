"""lockstep_cuda_library: .cu files compiled by nvcc where there is one, a stub elsewhere.

One nvcc action per .cu file; the objects are wrapped as an ordinary cc target. Headers of such a library are plain C++,
so that what depends on it never sees CUDA.
"""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")
load("@local_cuda//:defs.bzl", "CUDA_ENABLED", "CUDA_HOME", "NVCC", "NVCC_CCBIN")
load("//bazel:lockstep.bzl", "lockstep_cc_library")

# One real architecture per generation that the kernels are tuned for, and PTX of the newest for what comes after it.
_ARCHITECTURES = [
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90,code=sm_90",
    "-gencode=arch=compute_100,code=[sm_100,compute_100]",
]

def _cuda_objects_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(ctx = ctx, cc_toolchain = toolchain)
    merged = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    context = merged.compilation_context

    flags = ["-std=c++17", "-O3", "-ccbin", NVCC_CCBIN, "-Xcompiler", "-fPIC,-Wall,-Werror", "-Werror", "all-warnings"]
    # The driver unpacks a kernel when it loads it. What three architectures of many kernels take shrinks to a tenth.
    flags += _ARCHITECTURES + ["--compress-mode=size"] + ctx.attr.nvcc_copts
    for directory in [".", ctx.bin_dir.path]:
        flags += ["-I", directory]
    for directory in context.includes.to_list() + context.quote_includes.to_list() + context.system_includes.to_list():
        flags += ["-isystem" if "external" in directory else "-I", directory]

    objects = []
    for source in ctx.files.srcs:
        output = ctx.actions.declare_file("_cuda/%s/%s.o" % (ctx.label.name, source.basename))

        # Else the object has the absolute path of the source and the number of nvcc's process in names of symbols.
        same_names = ["--keep", "--keep-dir", output.dirname, "-Xcudafe", "--orig_src_path_name " + source.path]
        ctx.actions.run(
            executable = NVCC,
            arguments = flags + same_names + ["-x", "cu", "-c", source.path, "-o", output.path],
            inputs = depset([source] + ctx.files.hdrs, transitive = [context.headers]),
            outputs = [output],
            mnemonic = "CudaCompile",
            progress_message = "Compiling %s with nvcc" % source.short_path,
            env = {"PATH": CUDA_HOME + "/bin:/usr/bin:/bin"},
        )
        objects.append(output)

    compiled = cc_common.create_compilation_outputs(
        objects = depset(objects),
        pic_objects = depset(objects),
    )
    linking, _ = cc_common.create_linking_context_from_compilation_outputs(
        actions = ctx.actions,
        name = ctx.label.name,
        feature_configuration = features,
        cc_toolchain = toolchain,
        compilation_outputs = compiled,
        linking_contexts = [merged.linking_context],
        disallow_dynamic_library = True,
    )
    return [
        DefaultInfo(files = depset(objects)),
        CcInfo(compilation_context = context, linking_context = linking),
    ]

_cuda_objects = rule(
    implementation = _cuda_objects_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"]),
        "hdrs": attr.label_list(allow_files = True),
        "nvcc_copts": attr.string_list(),
        "deps": attr.label_list(providers = [CcInfo]),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def lockstep_cuda_library(name, srcs, stub_srcs, hdrs, deps = [], nvcc_copts = [], **kwargs):
    """A library whose sources are CUDA where nvcc was found, and stub_srcs elsewhere.

    Args:
      name: the target.
      srcs: .cu files.
      stub_srcs: .cc files that define the same functions and answer UNAVAILABLE.
      hdrs: plain C++ headers.
      deps: what both include.
      nvcc_copts: more flags for nvcc.
      **kwargs: passed on to lockstep_cc_library.
    """
    if CUDA_ENABLED:
        _cuda_objects(
            name = name + "_objects",
            srcs = srcs,
            hdrs = hdrs,
            nvcc_copts = nvcc_copts,
            deps = deps + ["@local_cuda//:cudart_static"],
        )
        lockstep_cc_library(name = name, hdrs = hdrs, deps = deps + [":" + name + "_objects"], **kwargs)
    else:
        lockstep_cc_library(name = name, srcs = stub_srcs, hdrs = hdrs, deps = deps, **kwargs)

def lockstep_cuda_resources_test(name, library, srcs):
    """A script that is given the toolkit's folder and the objects of a lockstep_cuda_library, none where there is no nvcc.

    Args:
      name: the target.
      library: the library, of the same package.
      srcs: the script.
    """
    objects = [":" + library + "_objects"] if CUDA_ENABLED else []
    native.sh_test(
        name = name,
        size = "small",
        srcs = srcs,
        args = [CUDA_HOME] + ["$(rootpaths %s)" % label for label in objects],
        data = objects,
    )
