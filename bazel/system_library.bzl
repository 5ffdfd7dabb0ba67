"""Repositories over libraries that the system's package manager installed. Their headers are on the compiler's own path.

pkg-config names what to link, since releases of a library divide it differently. PKG_CONFIG may name another pkg-config.
"""

def _pkg_config(ctx, arguments):
    name = ctx.os.environ.get("PKG_CONFIG", "pkg-config")
    program = ctx.which(name)
    if program == None:
        fail("there is no %s; ./bazelw installs it (package pkgconf)" % name)
    found = ctx.execute([program] + arguments)
    if found.return_code != 0:
        fail("@%s: %s" % (ctx.name, found.stderr))
    return [word for word in found.stdout.strip().split(" ") if word]

def _linkopts(ctx):
    if not ctx.attr.modules or ctx.attr.headers_only:
        return []
    options = ctx.attr.linkopts + _pkg_config(ctx, ["--libs"] + (["--static"] if ctx.attr.archives else []) + ctx.attr.modules)
    options = ["-l:lib%s.a" % option[2:] if option[:2] == "-l" and option[2:] in ctx.attr.archives else option for option in options]

    # Each target brings all libraries of its repository, and a program loads those that it uses.
    return ["-Wl,--push-state,--as-needed"] + options + ["-Wl,--pop-state"]

def _system_library_impl(ctx):
    ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % ctx.name)
    texts = {"": "cc_library(\n    name = \"linked\",\n    linkopts = %r,\n)\n" % _linkopts(ctx)}
    if ctx.attr.modules:
        ctx.file("defs.bzl", "VERSION = %r\n" % _pkg_config(ctx, ["--modversion", ctx.attr.modules[0]])[0])
    for target in ctx.attr.targets:
        package, _, name = target.rpartition(":")
        texts[package] = texts.get(package, "") + "cc_library(\n    name = %r,\n    defines = %r,\n    deps = [\"//:linked\"],\n)\n" % (
            name,
            ctx.attr.defines,
        )
    for package, text in texts.items():
        ctx.file("./%s/BUILD.bazel" % package, "package(default_visibility = [\"//visibility:public\"])\n\n" + text)

system_library = repository_rule(
    implementation = _system_library_impl,
    attrs = {
        "targets": attr.string_list(mandatory = True, doc = "PACKAGE:NAME, called as in the library's own build."),
        "modules": attr.string_list(doc = "pkg-config's names. //:defs.bzl has the VERSION of the first."),
        "headers_only": attr.bool(doc = "Links nothing."),
        "linkopts": attr.string_list(doc = "What pkg-config does not know."),
        "archives": attr.string_list(doc = "Libraries of which the .a file is linked, without 'lib' and '.a'."),
        "defines": attr.string_list(),
    },
    environ = ["PKG_CONFIG", "PKG_CONFIG_LIBDIR", "PKG_CONFIG_PATH"],
    local = True,
)
