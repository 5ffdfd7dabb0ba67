"""A repository over a library that the system's package manager installed: headers in /usr/include, linked by -l."""

def _system_library_impl(ctx):
    ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % ctx.name)
    ctx.symlink(ctx.attr.build_file, "BUILD.bazel")

system_library = repository_rule(
    implementation = _system_library_impl,
    attrs = {"build_file": attr.label(allow_single_file = True, mandatory = True)},
    local = True,
)
