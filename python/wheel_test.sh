#!/usr/bin/env bash
# The wheel works where nothing else of Lockstep is: its binding, its library and its launcher find each other.
set -euo pipefail
python/wheel "$TEST_TMPDIR/wheel"
wheel=("$TEST_TMPDIR"/wheel/lockstep_runtime-*-cp310-abi3-manylinux_*.whl)
site=$TEST_TMPDIR/site
/usr/bin/python3 -m zipfile -e "${wheel[0]}" "$site"
cat >"$TEST_TMPDIR/sum.py" <<'PY'
import array
import importlib.metadata
import lockstep

assert lockstep.__file__.startswith('SITE'), lockstep.__file__
with lockstep.init() as communicator:
    x = array.array('f', [communicator.rank + 1])
    communicator.all_reduce(x)
    assert x[0] == 3, x
assert importlib.metadata.version('lockstep-runtime') == lockstep.__version__
assert [entry.value for entry in importlib.metadata.entry_points(group='torch.distributed.backends')] == ['lockstep.torch.backend:register']
PY
sed -i "s#SITE#$site#" "$TEST_TMPDIR/sum.py"
cd /
# What zipfile does not do and pip does.
chmod +x "$site/lockstep/_lib/lockstep-run"
env -i PATH=/usr/bin:/bin QEMU_LD_PREFIX="${QEMU_LD_PREFIX:-}" PYTHONPATH="$site" PYTHONDONTWRITEBYTECODE=1 \
  "${QEMU_LD_PREFIX:-}/usr/bin/python3" -m lockstep.run -n 2 "$TEST_TMPDIR/sum.py"
