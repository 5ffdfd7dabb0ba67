"""The headers of the system's Python, for the binding: @python_headers//:headers."""

def _python_configure_impl(ctx):
    found = ctx.execute(["/usr/bin/python3", "-c", "import sysconfig; print(sysconfig.get_path('include'), end='')"])
    if found.return_code != 0:
        fail("no headers of /usr/bin/python3: " + found.stderr)
    ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % ctx.name)
    ctx.symlink(found.stdout, "include")
    ctx.file("BUILD.bazel", """cc_library(
    name = "headers",
    hdrs = glob(["include/**"]),
    includes = ["include"],
    visibility = ["//visibility:public"],
)
""")

python_configure = repository_rule(
    implementation = _python_configure_impl,
    local = True,
)
