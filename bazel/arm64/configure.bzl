"""A C++ toolchain that compiles for arm64 Linux on another machine: --config=arm64.

The compiler is Debian's g++-aarch64-linux-gnu. LOCKSTEP_ARM64_ROOT names a folder with the packages of Debian for arm64 that the build
needs, which tools/arm64-root makes.
"""

_BUILD = """
load("@bazel_tools//tools/cpp:unix_cc_toolchain_config.bzl", "cc_toolchain_config")

filegroup(name = "empty")

cc_toolchain_config(
    name = "config",
    abi_libc_version = "glibc",
    abi_version = "gcc",
    builtin_sysroot = "{root}",
    compile_flags = ["-Wall", "-fno-omit-frame-pointer", "-Wno-psabi"],
    compiler = "gcc",
    cpu = "aarch64",
    cxx_builtin_include_directories = {includes},
    cxx_flags = ["-std=c++17"],
    dbg_compile_flags = ["-g"],
    host_system_name = "local",
    link_flags = ["-Wl,-no-as-needed", "-Wl,-z,relro,-z,now"],
    link_libs = ["-lstdc++", "-lm"],
    opt_compile_flags = ["-O2", "-DNDEBUG", "-ffunction-sections", "-fdata-sections"],
    opt_link_flags = ["-Wl,--gc-sections"],
    target_libc = "glibc",
    target_system_name = "aarch64-linux-gnu",
    tool_paths = {tools},
    toolchain_identifier = "arm64",
    unfiltered_compile_flags = [
        "-no-canonical-prefixes",
        "-fno-canonical-system-headers",
        "-Wno-builtin-macro-redefined",
        "-D__DATE__=\\"redacted\\"",
        "-D__TIMESTAMP__=\\"redacted\\"",
        "-D__TIME__=\\"redacted\\"",
    ],
)

cc_toolchain(
    name = "cc_toolchain",
    all_files = ":empty",
    compiler_files = ":empty",
    dwp_files = ":empty",
    linker_files = ":empty",
    objcopy_files = ":empty",
    strip_files = ":empty",
    supports_param_files = 1,
    toolchain_config = ":config",
)

toolchain(
    name = "toolchain",
    target_compatible_with = [
        "@platforms//cpu:aarch64",
        "@platforms//os:linux",
    ],
    toolchain = ":cc_toolchain",
    toolchain_type = "@bazel_tools//tools/cpp:toolchain_type",
)
"""

_TOOLS = ["ar", "cpp", "dwp", "gcc", "gcov", "ld", "nm", "objcopy", "objdump", "strip"]

def _arm64_configure_impl(ctx):
    root = ctx.os.environ.get("LOCKSTEP_ARM64_ROOT", "")
    if not ctx.path((root or "/") + "/usr/include/aarch64-linux-gnu").exists:
        fail("--config=arm64: LOCKSTEP_ARM64_ROOT=%s is not a root of arm64; make one with tools/arm64-root" % root)
    found = ctx.execute(["aarch64-linux-gnu-g++", "--sysroot=" + root, "-xc++", "-E", "-v", "/dev/null"])
    if found.return_code != 0:
        fail("--config=arm64 needs the package g++-aarch64-linux-gnu: " + found.stderr)
    lines = found.stderr.split("search starts here:\n")[-1].split("End of search list.")[0].split("\n")
    includes = [str(ctx.path(line.strip()).realpath) for line in lines if line.strip()]
    tools = {tool: "/usr/bin/aarch64-linux-gnu-" + tool for tool in _TOOLS}
    tools["llvm-cov"] = "/bin/false"
    ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % ctx.name)
    ctx.file("BUILD.bazel", _BUILD.format(root = root, includes = repr(includes), tools = repr(tools)))

arm64_configure = repository_rule(
    implementation = _arm64_configure_impl,
    environ = ["LOCKSTEP_ARM64_ROOT"],
    local = True,
)
