#!/usr/bin/env bash
# Has each launcher that this machine has start tests/launched.c, with nothing set: ranks find each other by what the launcher brings. Where
# the launcher brings an MPI library, also in a program that uses it, which is initialised before Lockstep or after. Slurm runs with a
# controller and a node of its own. A launcher that is not installed is skipped. Debian's packages: openmpi-bin and libopenmpi-dev, mpich
# and libmpich-dev, libpmix2, slurm-wlm. PATH leads to the Python whose torchrun is meant.
set -uo pipefail
PATH=$PATH:/usr/sbin:/sbin
work=$(mktemp -d /tmp/launchers.XXXXXX)  # a short path: slurmd has sockets in it
cp -L capi/liblockstep.so "$work/liblockstep.so.1"
export LOCKSTEP_LOG=info OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
failures=0
daemons=()

end() {
  ((${#daemons[@]} == 0)) || kill "${daemons[@]}" 2>/dev/null
  wait
  rm -rf "$work"
}
trap end EXIT

has() { command -v "$1" >/dev/null; }
skipped() { echo "SKIPPED $1: $2"; }

compile() { "$1" -std=c99 -Wall -Werror "${@:3}" -Icapi tests/launched.c "$work/liblockstep.so.1" -Wl,-rpath,"$work" -o "$work/$2"; }

run() { timeout 60 "$@" >"$work/output" 2>&1; }

result() {  # NAME PROBLEM
  if [[ -z $2 ]]; then
    echo "PASSED $1"
  else
    echo "FAILED $1: $2"
    cat "$work/output"
    failures=$((failures + 1))
  fi
}

# NAME LINES PATTERN COMMAND...: it succeeds, and has so many lines with the pattern, and three ranks add up twice.
expect() {
  local problem=
  run "${@:4}" || problem="rc $?"
  for rank in 0 1 2; do
    [[ $(grep -c "^Lockstep: rank $rank of 3, sum 6$" "$work/output") == 2 ]] || problem+=" no sum of rank $rank"
  done
  [[ $(grep -c "$3" "$work/output") == "$2" ]] || problem+=" not $2 lines with '$3'"
  result "$1" "$problem"
}

# NAME PATTERN COMMAND...: it fails within the time, and says so.
expect_error() {
  local problem='' rc
  run "${@:3}"
  rc=$?
  ((rc != 0 && rc != 124)) || problem="rc $rc"
  grep -q "$2" "$work/output" || problem+=" no line with '$2'"
  result "$1" "$problem"
}

# NAME PATTERN COMMAND...: what holds for each launcher of three ranks. A rank that ends early leaves the others alone.
expect_three() {
  expect "$1" 6 "$2" "${@:3}" "$work/plain"
  expect "$1, one rank ends early" 2 'still here: rank' "${@:3}" "$work/plain" early
  expect_error "$1, one rank is absent" "${absent:-not all ranks of the job have come}" "${@:3}" "$work/plain" absent
}

# NAME PATTERN PROGRAM COMMAND...
expect_mpi() {
  for order in first last; do
    expect "$1, MPI $order" 3 'MPI: rank . of 3, sum 6' "${@:4}" "$work/$3" "$order"
    grep -q "$2" "$work/output" || result "$1, MPI $order" "no line with '$2'"
  done
}

has cc || { echo 'SKIPPED: there is no C compiler' && exit 0; }
compile cc plain || exit 1
# Debian has the compiler's wrapper in the launcher's package, and the headers in another one.
compiles_mpi() { has "$1" && echo '#include <mpi.h>' | "$1" -x c -fsyntax-only - 2>/dev/null; }
compiles_mpi mpicc.openmpi && { compile mpicc.openmpi openmpi -DWITH_MPI || exit 1; }
compiles_mpi mpicc.mpich && { compile mpicc.mpich mpich -DWITH_MPI || exit 1; }

if ! has mpirun.openmpi; then
  skipped 'Open MPI' 'there is no mpirun.openmpi'
elif [[ $(ldconfig -p) != *libpmix.so.2* ]]; then
  skipped 'Open MPI' 'there is no libpmix.so.2'
else
  ours=(mpirun.openmpi --oversubscribe -n 3)
  meet='from Open MPI.s variables; the ranks meet over PMIx at tcp://'
  expect_three 'Open MPI' "$meet" "${ours[@]}"
  if [[ -e $work/openmpi ]]; then expect_mpi 'Open MPI' "$meet" openmpi "${ours[@]}"
  else skipped 'Open MPI, MPI' 'mpicc.openmpi has no mpi.h'; fi
  expect_error 'Open MPI, rank 0 has no interface' 'rank 1 of 2 (by Open MPI): rank 0: .*nosuch0' mpirun.openmpi --oversubscribe -n 1 \
    -x LOCKSTEP_INTERFACE==nosuch0 sh -c "$work/plain; sleep 1" : -n 1 "$work/plain"
  expect_error 'Open MPI, loopback between hosts' 'rank 1 of 2 (by Open MPI): rank 0: LOCKSTEP_INTERFACE==lo chooses loopback' \
    mpirun.openmpi --oversubscribe -n 1 -x LOCKSTEP_INTERFACE==lo env OMPI_COMM_WORLD_LOCAL_SIZE=1 sh -c "$work/plain; sleep 1" : \
    -n 1 "$work/plain"
  expect_error 'Open MPI without its PMIx' 'PMIX_RANK.*set LOCKSTEP_STORE=tcp://' \
    mpirun.openmpi --oversubscribe -n 2 env -u PMIX_RANK "$work/plain"
fi

if ! has mpirun.mpich; then
  skipped MPICH 'there is no mpirun.mpich'
else
  ours=(mpirun.mpich -n 3)
  meet='from PMI.s variables; the ranks meet over PMI-1 at tcp://'
  expect_three MPICH "$meet" "${ours[@]}"
  if [[ -e $work/mpich ]]; then expect_mpi MPICH "$meet" mpich "${ours[@]}"; else skipped 'MPICH, MPI' 'mpicc.mpich has no mpi.h'; fi
  if [[ -e $work/mpich ]]; then
    expect_error 'MPICH, MPI finalized' 'PMI_FD=[0-9]*: MPI_Finalize has closed.*set LOCKSTEP_STORE=tcp://' \
      "${ours[@]}" "$work/mpich" finalized
  fi
  # shellcheck disable=SC2016
  expect_error 'MPICH whose descriptor is closed' 'PMI_FD=[0-9]*: the descriptor.*set LOCKSTEP_STORE=tcp://' \
    mpirun.mpich -n 2 bash -c 'eval "exec $PMI_FD>&-"; exec "$0"' "$work/plain"
fi

if ! python3 -c 'import torch.distributed.run' 2>/dev/null; then
  skipped torchrun 'python3 has no torch'
else
  expect torchrun 6 "from torchrun's variables; the ranks meet at tcp://.*; job '.*\.0' (TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT)" \
    python3 -m torch.distributed.run --standalone --nproc-per-node 3 --no-python "$work/plain"
fi

free_port() {
  local port
  for port in $(shuf -i 30000-32000 -n 50); do
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port" && return; }
  done
}

kubeflow() {
  export PET_NNODES=3 PET_NPROC_PER_NODE=1 PET_MASTER_ADDR=localhost PET_MASTER_PORT
  PET_MASTER_PORT=$(($(free_port) - 1111)) # the ranks meet 1111 above
  local pids=()
  for PET_NODE_RANK in 0 1 2; do
    export PET_NODE_RANK
    "$work/plain" &
    pids+=($!)
  done
  wait "${pids[@]}"
}
export -f kubeflow free_port
export work
expect Kubeflow 6 "from Kubeflow's variables; the ranks meet at tcp://localhost:" bash -c kubeflow

if ! has slurmctld || ! has slurmd || ! has srun; then
  skipped srun 'there is no slurmctld, slurmd or srun'
  exit $((failures > 0))
fi

export SLURM_CONF=$work/slurm.conf
cat >"$SLURM_CONF" <<CONF
ClusterName=test
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/none
CredType=cred/none
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=localhost NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 CPUs=8
PartitionName=all Nodes=ALL Default=YES
CONF
mkdir "$work/state"
slurmctld -D -i >"$work/slurmctld.log" 2>&1 &
daemons+=($!)
slurmd -D -N localhost >"$work/slurmd.log" 2>&1 &
daemons+=($!)
idle() { [[ $(timeout 10 sinfo -h -o %t 2>/dev/null) == idle ]]; }
up() {
  until idle; do
    kill -0 "${daemons[@]}" 2>/dev/null && ((SECONDS < begun + 60)) || return 1
    sleep 0.2
  done
}
begun=$SECONDS
if ! up; then
  why=$(tail -qn 1 "$work/slurmctld.log" "$work/slurmd.log")
  case $why in
    *'not permitted'* | *'ermission denied'*) skipped srun "its daemons may not run here: $why" ;;
    *) echo "FAILED srun: its daemons do not come up: $why" && exit 1 ;;
  esac
  exit $((failures > 0))
fi

absent='the world did not form in time' expect_three 'srun --mpi=none' \
  "from Slurm's variables; the ranks meet at tcp://localhost:2[0-9]* (SLURM_.*; job '[0-9]*\.0'" srun --mpi=none -n 3
expect_three 'srun --mpi=pmi2' "from PMI's variables; the ranks meet over PMI-2 at tcp://" srun --mpi=pmi2 -n 3
[[ -e $work/mpich ]] && expect_mpi 'srun --mpi=pmi2' 'the ranks meet at tcp://localhost:' mpich srun --mpi=pmi2 -n 3
if [[ $(srun --mpi=list 2>&1) != *pmix* ]]; then
  skipped 'srun --mpi=pmix' 'this Slurm has no PMIx'
else
  expect_three 'srun --mpi=pmix' 'from PMIx; the ranks meet over PMIx at tcp://' srun --mpi=pmix -n 3
  [[ -e $work/openmpi ]] && expect_mpi 'srun --mpi=pmix' 'from PMIx' openmpi srun --mpi=pmix -n 3
fi
expect sbatch 6 "from Slurm's variables" \
  bash -c "sbatch -Q -W -n 3 -o '$work/log' examples/slurm/train.sbatch '$work/plain' && cat '$work/log'"
expect_error 'sbatch without srun' 'SLURM_STEP_ID is not set: srun starts ranks.*set LOCKSTEP_STORE=tcp://' \
  bash -c "sbatch -Q -W -n 3 -o '$work/log' --wrap '$work/plain' || { cat '$work/log'; false; }"
exit $((failures > 0))
